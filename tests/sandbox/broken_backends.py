"""Backends that each do one thing wrong, and which check of the self-check has to catch it."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.waiting import until
from vf.runtime.errors import SandboxError
from vf.sandbox.contract import Address, ExecResult, Output
from vf.sandbox.local import UnsafeLocalSandbox


def local() -> UnsafeLocalSandbox:
    return UnsafeLocalSandbox(unsafe_local=True)


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


class RaisesForNul(Execs):
    def before(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        if any("\0" in text for text in (kwargs.get("env") or {}).values()):
            raise ValueError("embedded null byte")
        return kwargs


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
    last: ExecResult
    open = 0

    async def exec(self, cmd: list[str] | str, **kwargs: Any) -> ExecResult:
        self.open += 1
        try:
            self.last = await self.inner.exec(cmd, **kwargs)
        finally:
            self.open -= 1
        await until(lambda: not self.open)
        return self.last


class IsLostByItsCode(Broken):
    async def python(self, code: str, **options: Any) -> ExecResult:
        result = await self.inner.python(code, **options)
        if result.returncode == 137:
            raise SandboxError("the sandbox is lost")
        return result


class FollowsLinksOut(Broken):
    async def download(self, path: str, to: Path, **kwargs: Any) -> None:
        await self.inner.download(path, to, **kwargs)
        (to / "absolute").symlink_to("/etc/passwd")


class FollowsLinksHere(Broken):
    async def download(self, path: str, to: Path, **kwargs: Any) -> None:
        (to / "file").write_bytes(await self.inner.read_file(f"{path}/file"))


class ForgetsModes(Broken):
    async def download(self, path: str, to: Path, **kwargs: Any) -> None:
        await self.inner.download(path, to, **kwargs)
        (to / "bin/program.sh").chmod(0o644)


class CountsNoNames(Broken):
    async def download(self, path: str, to: Path, **kwargs: Any) -> None:
        if "many" in path:
            kwargs["max_bytes"] = 2**30
        await self.inner.download(path, to, **kwargs)


class TellsOutputAtTheEnd(Broken):
    async def exec(self, cmd: list[str] | str, **kwargs: Any) -> ExecResult:
        on_output = kwargs.pop("on_output", None)
        if on_output is None:
            return await self.inner.exec(cmd, **kwargs)
        result = await self.inner.exec(cmd, **{**kwargs, "timeout": 1.0})
        on_output(Output("stdout", result.stdout.encode()))
        return result


class Starts(Broken):
    """Changes what a program in the background does."""

    def change(self, process: Any) -> None:
        raise NotImplementedError

    async def start(self, cmd: list[str] | str, **kwargs: Any) -> Any:
        process = await self.inner.start(cmd, **kwargs)
        self.change(process)
        return process


class DropsBackgroundInput(Starts):
    def change(self, process: Any) -> None:
        async def write(data: bytes) -> None:
            await process.end_input()

        process.write = write


class NeedsAReader(Starts):
    """Waits for the program, which waits for a reader."""

    def change(self, process: Any) -> None:
        process._process._drain = lambda: None


class KeepsAllOutput(Broken):
    """Reads without end, whether anybody takes it or not."""

    async def start(self, cmd: list[str] | str, **kwargs: Any) -> Any:
        process: Any = await self.inner.start(cmd, **kwargs)
        inner, read = process._process, deque[tuple[int, bytes]]()

        def take(header: dict[str, Any], parts: list[bytes]) -> None:
            type(inner).take(inner, header, parts)
            while inner._pieces:
                read.append(inner._pop())

        inner.take = take
        return process


class KillsAtTheTimeout(Starts):
    def change(self, process: Any) -> None:
        wait = process.wait

        async def killing(*, timeout: float | None = None) -> ExecResult:
            try:
                result: ExecResult = await wait(timeout=timeout)
            except TimeoutError:
                await process.kill()
                raise
            return result

        process.wait = killing


class KillsOnlyTheMainProcess(Broken):
    async def start(self, cmd: list[str] | str, **kwargs: Any) -> Any:
        process: Any = await self.inner.start(f"echo $$; exec sh -c {shlex.quote(str(cmd))}")
        pid = (await anext(aiter(process))).data.decode().strip()
        process._process._begun = False

        async def kill() -> None:
            await self.inner.exec(["kill", "-9", pid])

        process.kill = kill
        return process


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
    (RaisesForNul, "commands", "what no program can be given is a result that says why"),
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
        "folders",
        "a folder is copied with modes and links, and not beyond max_bytes",
    ),
    (FollowsLinksOut, "folders", "what is not a file, and a link that leads out, do not come out"),
    (FollowsLinksHere, "folders", "a link that is there already leads nothing elsewhere"),
    (ForgetsModes, "folders", "a folder comes out with modes and links"),
    (CountsNoNames, "folders", "one of more than max_bytes is ValueError, and nothing of it comes"),
    (
        TellsOutputAtTheEnd,
        "background",
        "what a program writes is seen while it runs, and is in the result",
    ),
    (DropsBackgroundInput, "background", "one reads what it is sent, and answers while it runs"),
    (NeedsAReader, "background", "the result has what nobody read"),
    (KeepsAllOutput, "background", "what nobody reads makes the program wait, and nothing is lost"),
    (KillsAtTheTimeout, "background", "waiting has a timeout, which ends nothing"),
    (KillsOnlyTheMainProcess, "background", "a kill ends everything that it started"),
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
