"""Runs inside a container, in the process that runs the tests: reports the result of each.

It is put into a folder of its own, and found there in two ways: by pytest, as the plugin that
``PYTEST_ADDOPTS`` names, and by any Python, as ``sitecustomize``, for programs that are built on
unittest. The first process that is about to run tests takes the key out of the folder, so that
there is no other report, and sends a line of JSON for each result over a connection that leads out
of the container, so that nothing can be taken back.

It adds one test of its own at the end, which must fail. Where that one passes, or does not run,
something else than the tests has decided what their results are.

Works with Python 3.5 and any version of pytest, and needs the standard library only.
"""

import json
import os
import socket
import unittest
import uuid
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_OUTCOMES = ("addSuccess", "addFailure", "addError", "addSkip")
_UNUSUAL = ("addExpectedFailure", "addUnexpectedSuccess")
_PROGRAMS = (b"unittest", b"runtests.py", b"manage.py", b"nose")


class _Report:
    """The connection; without one, nothing is sent."""

    def __init__(self) -> None:
        self.connection = None  # type: Any
        self.process = 0

    def begin(self) -> None:
        """Take the key and connect, if that was not done yet."""
        key = os.path.join(_HERE, "key")
        try:
            with open(key) as file:
                port, secret = file.read().split()
            os.unlink(key)
            self.connection = socket.create_connection(("127.0.0.1", int(port)))
        except (OSError, ValueError):
            return
        self.process = os.getpid()
        self.send(key=secret)

    @property
    def begun(self) -> bool:
        """Whether this process reports; what it forks does not."""
        return self.connection is not None and self.process == os.getpid()

    def send(self, **fields: Any) -> None:
        """Send a line."""
        data = (json.dumps(fields) + "\n").encode("ascii")
        while data and self.begun:
            data = data[os.write(self.connection.fileno(), data) :]


_report = _Report()


def _cannot_pass() -> None:
    """Fail, having tried every way in which tests fail; return if one does not fail any more."""
    case = unittest.FunctionTestCase(_cannot_pass)
    ways = [("assertEqual", 0, 1), ("assertTrue", 0), ("assertIn", 0, ()), ("fail", "0")]  # type: Any
    ways.append(("assertRaises", ValueError, int, 0))
    for name, *arguments in ways:
        try:
            getattr(case, str(name))(*arguments)
        except AssertionError:
            continue
        return
    raise AssertionError("0")


# With pytest.


def pytest_collection_modifyitems(items: Any) -> None:
    """Add the test that must fail."""
    import pytest

    functions = [item for item in items if isinstance(item, pytest.Function)]
    if not _report.begun or not functions:
        return
    module = functions[-1].getparent(pytest.Module)
    name = "test_" + uuid.uuid4().hex
    make = getattr(pytest.Function, "from_parent", None)
    if make is None:
        item = pytest.Function(name, module, callobj=_cannot_pass)
    else:
        item = make(module, name=name, callobj=_cannot_pass)
    items.append(item)
    _report.send(control=item.nodeid)


def pytest_runtest_logreport(report: Any) -> None:
    """Send what became of one phase of a test."""
    outcome = report.outcome
    if hasattr(report, "wasxfail") and not _called_off(report):
        outcome = {"skipped": "xfailed", "passed": "xpassed"}.get(outcome, outcome)
    _report.send(test=report.nodeid, phase=report.when, outcome=outcome)


def _called_off(report: Any) -> bool:
    """Whether pytest.xfail() was called by something else than the test's own file."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is None or "XFailed" not in crash.message.split(":")[0]:
        return False
    file = report.nodeid.split("::")[0]
    return not ("/" + str(crash.path).replace(os.sep, "/")).endswith("/" + file)


def pytest_sessionfinish() -> None:
    """Send that all tests have been run."""
    _report.send(finished=True)


def _begin_with_pytest() -> None:
    """Begin, and leave what programs that tests start find in the environment as it was."""
    for name in ("PYTEST_ADDOPTS", "PYTHONPATH"):
        before = os.environ.pop("VF_OLD_" + name, "")
        os.environ.pop(name, None)
        if before:
            os.environ[name] = before
    _report.begin()


# With unittest, and programs that are built on it.


def _begin_with_unittest() -> None:
    try:
        with open("/proc/self/cmdline", "rb") as file:
            command = file.read()
    except OSError:
        return
    if not any(program in command for program in _PROGRAMS):
        return
    _report.begin()
    if _report.begun:
        for name in _OUTCOMES + _UNUSUAL:
            _wrap_outcome(name)
        _wrap_runner()


def _wrap_outcome(name: str) -> None:
    original = getattr(unittest.TestResult, name)

    def add(self: Any, test: Any, *rest: Any) -> Any:
        described = test.shortDescription() if hasattr(test, "shortDescription") else None
        _report.send(test=str(test), also=[test.id(), described or ""], outcome=name)
        return original(self, test, *rest)

    setattr(unittest.TestResult, name, add)


def _wrap_runner() -> None:
    original = unittest.TextTestRunner.run
    within = []  # type: Any

    def run(self: Any, test: Any) -> Any:
        if within:  # a test that runs tests
            return original(self, test)
        within.append(True)

        def check() -> None:
            _cannot_pass()

        check.__name__ = "test_" + uuid.uuid4().hex
        control = unittest.FunctionTestCase(check)
        _report.send(control=str(control))
        result = original(self, unittest.TestSuite([test, control]))
        _report.send(finished=True)
        return result

    unittest.TextTestRunner.run = run  # type: ignore[method-assign]


if __name__ == "sitecustomize":
    _begin_with_unittest()
elif __name__.startswith("vf_report_"):
    _begin_with_pytest()
