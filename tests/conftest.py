"""What all tests share."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import signal
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, TypeVar

import hypothesis
import pytest

from tests.parts import PARTS, REQUIRE_ALL, VLLM_PYTHON, require
from tests.waiting import Clock
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.contract import OpenSandbox, Sandbox
from vf.sandbox.local import UnsafeLocalSandbox

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Nothing here asks a public server. Loading all authorities takes 50 ms of every client, so they
# know only one, whose key nobody has.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).with_name("authority.pem"))

# On a busy machine, examples are slow to make and to run; and that is not a fault.
hypothesis.settings.register_profile(
    "busy",
    deadline=None,
    max_examples=40,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("busy")

# What ignores signals (nohup, a shell's background) hands that down to what it starts; here they
# are sent on purpose.
for _number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(
            _number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL
        )

# Fixtures that need a part: who uses one is marked with the part.
MARKED_BY_FIXTURE = {"containers": "docker", "vllm_python": "vllm"}
OUR_MODULES = {"vf", "vf_rl", "tests", "benchmarks", "docs", "scripts"}

T = TypeVar("T")
InSandbox = Callable[[Callable[[Sandbox], Coroutine[Any, Any, T]]], T]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function in an event loop of its own."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    names = inspect.signature(test).parameters
    asyncio.run(test(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(autouse=True)
def logs_propagate() -> None:
    """Undo what a run or a check does to loggers, for `caplog` sees only what propagates."""
    for name in ("vf", "vf.environments", "transformers", "uvicorn"):
        logger = logging.getLogger(name)
        logger.propagate = True
        logger.setLevel(logging.NOTSET)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clocks of this process, which can jump ahead."""
    clock = Clock()
    clock.install(monkeypatch)
    return clock


@pytest.fixture(scope="session")
def containers() -> None:
    """Containers can be made from the default image; the test is marked, and skipped without."""
    require("docker")


@pytest.fixture(scope="session")
def vllm_python() -> str:
    """The interpreter that has vLLM; the test is marked, and skipped without."""
    require("vllm")
    return str(VLLM_PYTHON)


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


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that is marked with a part which is missing here, before any fixture is made."""
    for part in PARTS:
        if item.get_closest_marker(part):
            require(part)


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
    """Say in a line for each part how many tests were skipped, and what would enable them."""
    skipped = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple)
    )
    for reason, tests in sorted(skipped.items(), key=lambda item: -item[1]):
        terminalreporter.write_line(f"skipped {tests}: {reason}", yellow=True)
