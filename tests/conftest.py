"""What all tests share."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

import pytest

from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.doctor import check_engine
from vf.sandbox.container.errors import EngineProblem, ImageMissing
from vf.sandbox.container.profile import Profile
from vf.sandbox.contract import OpenSandbox, Sandbox
from vf.sandbox.local import UnsafeLocalSandbox

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# What ignores signals (nohup, a shell's background) hands that down to what it starts; here they
# are sent on purpose.
for _number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(
            _number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL
        )

NO_CONTAINERS = "no containers here: "
BUILD = "make sandbox-image (which runs `vf-sandbox build`)"
START = "bash scripts/start_docker.sh"

T = TypeVar("T")
InSandbox = Callable[[Callable[[Sandbox], Coroutine[Any, Any, T]]], T]


@pytest.fixture(scope="session")
def containers() -> None:
    """Skips the test where no container can be made from the default image."""
    try:
        check_engine(Profile())
    except EngineProblem as problem:
        if os.environ.get("VF_REQUIRE_ENGINE"):
            raise
        enable = BUILD if isinstance(problem, ImageMissing) else f"{START} && {BUILD}"
        pytest.skip(f"{NO_CONTAINERS}{problem}. To enable them: {enable}")


@pytest.fixture
def engine(containers: None) -> Iterator[Engine]:
    """An engine that can run containers from the default image; the test is skipped without."""
    found = Engine.connect()
    yield found
    found.close()


@pytest.fixture
def open_local() -> OpenSandbox:
    """Open unprotected sandboxes, for code that the tests hold themselves."""

    def open_one() -> AbstractAsyncContextManager[Sandbox]:
        return UnsafeLocalSandbox(unsafe_local=True)

    return open_one


@pytest.fixture
def in_sandbox(open_local: OpenSandbox) -> InSandbox[Any]:
    """Run something in an unprotected sandbox."""

    def run(work: Callable[[Sandbox], Coroutine[Any, Any, Any]]) -> Any:
        async def inside() -> Any:
            async with open_local() as sandbox:
                return await work(sandbox)

        return asyncio.run(inside())

    return run


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say loudly, in one line, how much of the sandbox was not tested."""
    reports = terminalreporter.stats.get("skipped", [])
    reasons = [report.longrepr[2] for report in reports if isinstance(report.longrepr, tuple)]
    skipped = [reason for reason in reasons if NO_CONTAINERS in reason]
    if skipped:
        why = skipped[0].partition(NO_CONTAINERS)[2]
        terminalreporter.write_line(
            f"SANDBOX NOT TESTED: {len(skipped)} tests with real containers were skipped: {why}",
            red=True,
            bold=True,
        )
