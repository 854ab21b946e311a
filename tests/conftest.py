"""What all tests share."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from chromium import find_chromium

from vf.sandbox.container.docker_engine import Engine, EngineProblem, ImageMissing
from vf.sandbox.container.doctor import check_engine
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
BUILD = "make sandbox-image (which runs `vf-rl sandbox build`)"
START = "bash scripts/start_docker.sh"

NO_BROWSER = "there is no Chromium here: apt-get install chromium"
REQUIRE_ALL = bool(os.environ.get("VF_REQUIRE_ALL"))  # no test may be skipped for lack of a part
MARKED_BY_FIXTURE = {"containers": "docker", "vllm_python": "vllm"}
OUR_MODULES = {"vf", "vf_rl", "tests", "benchmarks", "docs", "scripts"}

T = TypeVar("T")
InSandbox = Callable[[Callable[[Sandbox], Coroutine[Any, Any, T]]], T]


@pytest.fixture(autouse=True)
def logs_propagate() -> None:
    """Undo what a run or a check does to loggers, for `caplog` sees only what propagates."""
    for name in ("vf", "vf.environments", "transformers", "uvicorn"):
        logger = logging.getLogger(name)
        logger.propagate = True
        logger.setLevel(logging.NOTSET)


@pytest.fixture(scope="session")
def containers() -> None:
    """Skips the test where no container can be made from the default image."""
    try:
        check_engine(Profile())
    except EngineProblem as problem:
        if REQUIRE_ALL:
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what a fixture tells, and put the files with the slowest tests first.

    Files go to the worker processes whole, so a slow one that starts last is waited for.
    """
    slow = Counter[Path]()
    for item in items:
        for fixture, mark in MARKED_BY_FIXTURE.items():
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(mark)
        slow[item.path] += item.get_closest_marker("slow") is not None
    items.sort(key=lambda item: -slow[item.path])


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests of pages where no browser is installed."""
    if item.get_closest_marker("browser") and find_chromium() is None:
        assert not REQUIRE_ALL, NO_BROWSER
        pytest.skip(NO_BROWSER)


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Skip a file whose packages are not installed, where not every part is required."""
    outcome = yield
    report: Any = outcome.get_result()  # type: ignore[attr-defined]
    error = getattr(report.call.excinfo, "value", None) if report.failed else None
    while error is not None and not isinstance(error, ModuleNotFoundError):
        error = error.__cause__ or error.__context__
    if error is None or REQUIRE_ALL or str(error.name).split(".")[0] in OUR_MODULES:
        return
    why = f"needs {error.name}: pip install -e '.[test]'"
    report.outcome, report.longrepr = "skipped", (str(collector.path), 0, why)


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
