"""The self-check: real backends pass it, and every kind of broken one is caught."""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from tests.sandbox.broken_backends import (
    BROKEN,
    Broken,
    IgnoresTimeouts,
    MixesTheStreams,
    Wrong,
    backend,
    local,
)
from vf.runtime.errors import ConfigError, SandboxError
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.hardening import Profile
from vf.sandbox.container.opening import open_container
from vf.sandbox.selfcheck import CheckResult, check_sandbox, group_names, main
from vf.sandbox.selfcheck.run import CHECKS

# What this user, who may be root, or a backend without users or walls cannot have.
NOT_LOCAL = {
    "what the user may not touch is PermissionError",
    "another one may be named, by name or number",
    "the address is the only thing that can be reached",
}

WAITING = {"timeouts", "faults"}
LONG = {"timeouts", "tunnel", "faults", "files", "stdin"}


def check(
    backend: Callable[[], AbstractAsyncContextManager[Any]],
    *groups: str,
    match: str = "",
    patience: float = 60,
) -> list[CheckResult]:
    wanted = groups or None
    return asyncio.run(check_sandbox(backend, groups=wanted, match=match, patience=patience))


def failures(results: list[CheckResult]) -> dict[str, CheckResult]:
    return {result.name: result for result in results if result.outcome == "failed"}


@pytest.mark.parametrize("group", group_names())
def test_the_local_backend_keeps_the_contract(group: str) -> None:
    """Checks that mainly wait do so beside each other, each in a sandbox of its own."""

    async def beside() -> list[CheckResult]:
        each = [found.name for found in CHECKS if found.group == group]
        some = await asyncio.gather(
            *(check_sandbox(local, groups=[group], match=name, patience=60) for name in each)
        )
        return [result for results in some for result in results]

    results = asyncio.run(beside()) if group in WAITING else check(local, group)
    assert [result.name for result in results] == [c.name for c in CHECKS if c.group == group]
    assert {result.name for result in results if result.outcome == "skipped"} <= NOT_LOCAL
    assert failures(results) == {}


@pytest.mark.parametrize(
    "group",
    [
        pytest.param(name, marks=[pytest.mark.slow, pytest.mark.gate] if name in LONG else [])
        for name in group_names()
    ],
)
@pytest.mark.parametrize(
    "backend",
    [
        pytest.param(name, marks=getattr(pytest.mark, name), id=name)
        for name in ("docker", "bubblewrap")
    ],
)
def test_it_keeps_the_contract(
    backend: str, group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run_main("--backend", backend, "--group", group)
    report = capsys.readouterr().out
    assert code == 0, report
    # Namespaces have one user.
    skipped = 1 if (backend, group) == ("bubblewrap", "users") else 0
    assert f"0 failed, {skipped} skipped" in report


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_every_result_is_reported_as_it_comes() -> None:
    told: list[CheckResult] = []
    results = asyncio.run(check_sandbox(local, groups=["cwd"], tell=told.append))
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
    chosen = ("--group", "output", "--match", "come apart")
    assert run_main("--backend", "their_module:make", *chosen) == 1
    said = capsys.readouterr().out
    assert "FAILED   output     stdout and stderr come apart" in said  # as it went along
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
        (["--group", "nothing"], 2, "unknown value 'nothing'"),
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
