"""The self-check: real backends pass it, and every kind of broken one is caught."""

from __future__ import annotations

import asyncio
import os
import sys
import types
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from vf.runtime.errors import ConfigError, SandboxError
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.opening import open_container
from vf.sandbox.container.profile import Profile
from vf.sandbox.contract import Address, ExecResult
from vf.sandbox.local import UnsafeLocalSandbox
from vf.sandbox.selfcheck import CheckResult, check_contract, group_names, main
from vf.trainer.commands import sandbox as cli

GROUPS = {
    *("files", "output", "stdin", "commands", "env", "cwd", "users", "timeouts"),
    *("faults", "python", "bash", "calls", "close", "tunnel"),
}


def local() -> UnsafeLocalSandbox:
    return UnsafeLocalSandbox(unsafe_local=True)


def check(
    backend: Callable[[], AbstractAsyncContextManager[Any]],
    *groups: str,
    match: str = "",
    patience: float = 60,
) -> list[CheckResult]:
    wanted = groups or None
    return asyncio.run(check_contract(backend, groups=wanted, match=match, patience=patience))


def failures(results: list[CheckResult]) -> dict[str, CheckResult]:
    return {result.name: result for result in results if result.outcome == "failed"}


@pytest.mark.slow
def test_containers_keep_the_contract(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["self-check"])
    said = capsys.readouterr().out
    assert code == 0, said
    assert "0 failed, 0 skipped" in said
    assert {line.split()[1] for line in said.splitlines() if line.startswith("ok")} == GROUPS


@pytest.mark.slow
def test_the_local_backend_keeps_the_contract() -> None:
    async def run() -> list[CheckResult]:
        # Each group has its own sandbox anyway.
        each = await asyncio.gather(*(check_contract(local, groups=[name]) for name in GROUPS))
        return [result for results in each for result in results]

    results = asyncio.run(run())
    assert failures(results) == {}
    assert {result.group for result in results} == GROUPS == set(group_names())
    # Only what this user, who may be root, or a backend without users or walls cannot have.
    assert len([result for result in results if result.outcome == "skipped"]) <= 3


class Broken:
    """A backend that does one thing wrong, and everything else as the local one."""

    def __init__(self, inner: UnsafeLocalSandbox) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


Wrong = type[Broken]


class LosesLastByte(Broken):
    async def read_file(self, path: str, **kwargs: Any) -> bytes:
        data = await self.inner.read_file(path, **kwargs)
        return data[:-1] if len(data) > 2**20 else data


class TranslatesLineEnds(Broken):
    async def write_file(self, path: str, content: str | bytes) -> None:
        if isinstance(content, str):
            content = content.replace("\r\n", "\n")
        await self.inner.write_file(path, content)


class IgnoresReadLimits(Broken):
    async def read_file(self, path: str, **kwargs: Any) -> bytes:
        return await self.inner.read_file(path)


class RaisesOneErrorForAll(Broken):
    async def read_file(self, path: str, **kwargs: Any) -> bytes:
        try:
            return await self.inner.read_file(path, **kwargs)
        except OSError as error:
            raise OSError(f"no: {error}") from None


class Execs(Broken):
    """Changes what goes into exec, or what comes out of it."""

    def before(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        return kwargs

    def after(self, result: ExecResult) -> ExecResult:
        return result

    async def exec(self, cmd: list[str] | str, **kwargs: Any) -> ExecResult:
        return self.after(await self.inner.exec(cmd, **self.before(kwargs)))


class IgnoresTimeouts(Execs):
    def before(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        return {**kwargs, "timeout": 300.0}


class RaisesOnTimeout(Execs):
    def after(self, result: ExecResult) -> ExecResult:
        if result.timed_out:
            raise TimeoutError
        return result


class TakesAnyKillForATimeout(Execs):
    def after(self, result: ExecResult) -> ExecResult:
        return replace(result, timed_out=result.timed_out or result.returncode == 137)


class MixesTheStreams(Execs):
    def after(self, result: ExecResult) -> ExecResult:
        return replace(result, stdout=result.stdout + result.stderr, stderr="")


class HidesReturnCodes(Execs):
    def after(self, result: ExecResult) -> ExecResult:
        return replace(result, returncode=min(result.returncode, 1))


class DropsInput(Execs):
    def before(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        return {**kwargs, "input": None}


class CutsInput(Execs):
    def before(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        given = kwargs.get("input")
        return {**kwargs, "input": given and given[: 2**22]}


class KeepsNoTail(Execs):
    def after(self, result: ExecResult) -> ExecResult:
        return replace(result, stdout=result.stdout.partition("\n[...")[0])


class IgnoresEnv(Execs):
    def before(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        return {**kwargs, "env": None}


class LeaksEnv(Execs):
    def before(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        mine: Mapping[str, str] = {k: v for k, v in os.environ.items() if k.startswith("VF_")}
        return {**kwargs, "env": {**mine, **(kwargs.get("env") or {})}}


class IgnoresCwd(Execs):
    def before(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        return {**kwargs, "cwd": None}


class AcceptsAnyUser(Execs):
    def before(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        return {**kwargs, "user": None}


class QuotesNothing(Broken):
    async def exec(self, cmd: list[str] | str, **kwargs: Any) -> ExecResult:
        return await self.inner.exec(cmd if isinstance(cmd, str) else " ".join(cmd), **kwargs)


class KillsOnlyTheShell(Broken):
    """Has a timeout of its own, and forgets the children."""

    async def exec(self, cmd: list[str] | str, **kwargs: Any) -> ExecResult:
        timeout = kwargs.pop("timeout", 30.0)
        if timeout != 1 or not isinstance(cmd, str):
            return await self.inner.exec(cmd, timeout=timeout, **kwargs)
        self.running = asyncio.create_task(self.inner.exec(cmd, timeout=30, **kwargs))
        await asyncio.sleep(timeout)
        return ExecResult(137, timed_out=True, duration=timeout)


class ForgetsPython(Broken):
    async def python(self, code: str, **kwargs: Any) -> ExecResult:
        return await self.inner.exec(["python3", "-c", code], **kwargs)


class ForgetsBash(Broken):
    async def bash(self, command: str, **kwargs: Any) -> ExecResult:
        return await self.inner.exec(["bash", "-c", command], **kwargs)


class LivesOnAfterClose(Broken):
    async def close(self) -> None:
        return


class RunsOneAtATimeWithSharedOutput(Broken):
    last: ExecResult | None = None

    async def exec(self, cmd: list[str] | str, **kwargs: Any) -> ExecResult:
        self.last = await self.inner.exec(cmd, **kwargs)
        await asyncio.sleep(0.1)
        return self.last


class IsLostByItsCode(Broken):
    async def python(self, code: str, **options: Any) -> ExecResult:
        result = await self.inner.python(code, **options)
        if result.returncode == 137:
            raise SandboxError("the sandbox is lost")
        return result


class IgnoresFolderLimits(Broken):
    async def upload(self, folder: str, to: str, **kwargs: Any) -> None:
        await self.inner.upload(folder, to)


class ChoosesThePort(Broken):
    async def forward(self, address: Address, *, port: int = 0) -> int:
        return await self.inner.forward(address)


class EndsBothWays(Broken):
    """Passes on the first end as the end of all."""

    async def forward(self, address: Address, *, port: int = 0) -> int:
        inner = await self.inner.forward(address, port=port)
        assert self.inner._session is not None
        tunnel = self.inner._session._tunnel
        take = tunnel.take

        def wrong(header: dict[str, Any], parts: list[bytes]) -> None:
            take({"close": True, **header} if "end" in header else header, parts)

        tunnel.take = wrong  # type: ignore[method-assign]
        return inner


BROKEN: list[tuple[Wrong, str, str]] = [
    (LosesLastByte, "files", "50 MiB come back"),
    (TranslatesLineEnds, "files", "a text comes back"),
    (IgnoresReadLimits, "files", "a read takes exactly max_bytes, and not one byte more"),
    (RaisesOneErrorForAll, "files", "what is missing is FileNotFoundError"),
    (RaisesOneErrorForAll, "files", "a directory is IsADirectoryError"),
    (MixesTheStreams, "output", "stdout and stderr come apart"),
    (HidesReturnCodes, "output", "return codes are the program's"),
    (
        KeepsNoTail,
        "output",
        "too much is cut in the middle: head and tail stay, and the cut is said",
    ),
    (DropsInput, "stdin", "a text arrives"),
    (CutsInput, "stdin", "50 MiB arrive"),
    (QuotesNothing, "commands", "nothing in an argument is expanded"),
    (IgnoresEnv, "env", "variables arrive as they are"),
    (LeaksEnv, "env", "nothing of the client's own arrives"),
    (IgnoresCwd, "cwd", "absolute, it is that one"),
    (AcceptsAnyUser, "users", "one that does not exist is ValueError"),
    (RaisesOnTimeout, "timeouts", "one that is over is a result, with the output so far"),
    (TakesAnyKillForATimeout, "timeouts", "a quick death by a signal is none"),
    (KillsOnlyTheShell, "timeouts", "its children are killed"),
    (
        IsLostByItsCode,
        "faults",
        "code that kills its own processes gets a result, and so does what follows",
    ),
    (ForgetsPython, "python", "its state lives on between calls"),
    (ForgetsBash, "bash", "directory, variables and functions live on between calls"),
    (
        RunsOneAtATimeWithSharedOutput,
        "calls",
        "many run at the same time, each with its own output",
    ),
    (
        IgnoresFolderLimits,
        "files",
        "a folder is copied with modes and links, and not beyond max_bytes",
    ),
    (ChoosesThePort, "tunnel", "a program reaches the address, on a port that is chosen or given"),
    (EndsBothWays, "tunnel", "either side may end first, and be sent more"),
    (LivesOnAfterClose, "close", "a second time does nothing, and then every call is SandboxError"),
]


def backend(broken: Wrong) -> Callable[[], AbstractAsyncContextManager[Broken]]:
    @asynccontextmanager
    async def make() -> AsyncIterator[Broken]:
        async with local() as inner:
            yield broken(inner)

    return make


@pytest.mark.parametrize(
    ("broken", "group", "name"), BROKEN, ids=[broken.__name__ for broken, _, _ in BROKEN]
)
def test_a_broken_backend_is_caught(broken: Wrong, group: str, name: str) -> None:
    found = failures(check(backend(broken), group, match=name, patience=20))
    assert list(found) == [name]
    assert found[name].expected
    assert found[name].came
    assert found[name].group == group


def test_a_sandbox_with_a_network_is_caught(engine: Engine) -> None:
    name = "the address is the only thing that can be reached"
    profile = Profile(network="bridge")
    results = check(lambda: open_container(profile), "tunnel", match=name)
    assert "by UDP" in failures(results)[name].came


def test_a_backend_that_ignores_timeouts_is_caught_and_waited_for_no_longer_than_said() -> None:
    results = check(backend(IgnoresTimeouts), "timeouts", match="a ", patience=1)
    found = failures(results)["one that is over is a result, with the output so far"]
    assert (found.expected, found.came) == ("an end within 1 s", "none")
    # Those after a failure have a sandbox of their own.
    passed = {result.name for result in results if result.outcome == "passed"}
    assert "a quick death by a signal is none" in passed


def test_what_cannot_be_opened_is_raised() -> None:
    @asynccontextmanager
    async def lost() -> AsyncIterator[Any]:
        raise SandboxError("nothing to be had")
        yield

    with pytest.raises(SandboxError, match="nothing to be had"):
        check(lost)


def test_an_unknown_group_is_named() -> None:
    with pytest.raises(ConfigError, match="no group 'fles'"):
        check(local, "fles")


def test_every_result_is_told_as_it_comes() -> None:
    told: list[CheckResult] = []
    results = asyncio.run(check_contract(local, groups=["cwd"], tell=told.append))
    assert told == results
    assert [result.outcome for result in results] == ["passed"] * 4


def broken_backend() -> AbstractAsyncContextManager[Broken]:
    """What --backend module:callable names."""
    return backend(MixesTheStreams)()


def run_main(*arguments: str) -> int:
    try:
        return main(arguments)
    except SystemExit as exc:
        return int(exc.code or 0)


def test_the_command_shows_what_was_expected_and_what_came(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("their_module")
    module.__dict__["make"] = broken_backend
    monkeypatch.setitem(sys.modules, "their_module", module)
    assert run_main("--backend", "their_module:make", "--group", "output") == 1
    said = capsys.readouterr().out
    assert "FAILED   output    stdout and stderr come apart" in said  # as it went along
    assert "expected  stdout = 'out\\n'\n         got       'out\\nerr\\n'" in said  # in the table
    assert " failed, 0 skipped in" in said


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--help"], 0, "examples:"),
        (["--list"], 0, "timeouts\n"),
        (["--backend", "local"], 2, "add --unsafe-local"),
        (["--backend", "podman"], 2, "module:callable"),
        (["--backend", "no_such_module:x"], 2, "cannot be imported"),
        (["--backend", "local", "--unsafe-local", "--match", "nonsense"], 2, "no check's name"),
        (["--group", "nothing"], 2, "invalid choice: 'nothing'"),
        (["--backend", "local", "--unsafe-local", "--group", "cwd"], 0, "4 passed, 0 failed"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_the_command(
    arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(*arguments) == code
    captured = capsys.readouterr()
    assert said in captured.out + captured.err


def test_the_command_names_a_missing_image(
    engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main("--image", "no-such-image:1", "--group", "cwd") == 2
    assert "no-such-image:1" in capsys.readouterr().err
