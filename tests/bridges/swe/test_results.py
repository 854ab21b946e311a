"""What became of tests is read from a report that cannot be taken back, or from printed lines."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from vf.bridges.swe.results import Receiver, Results, Status, names_of, parse_output


def received(*lines: dict[str, Any] | bytes, key: str = "k") -> Results:
    """Return what a receiver makes of lines that are sent to it."""

    async def run() -> Results:
        receiver = Receiver("k")
        server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            for line in ({"key": key}, *lines):
                writer.write(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")
            writer.close()
            await receiver.ended(5.0 if key == "k" else 0.1)
        return receiver.results

    return asyncio.run(run())


def phase(test: str, outcome: str, when: str = "call") -> dict[str, Any]:
    return {"test": test, "phase": when, "outcome": outcome}


CONTROL = [{"control": "t::c"}, phase("t::c", "failed"), {"finished": True}]


@pytest.mark.parametrize(
    ("reports", "status"),
    [
        ([phase("t::a", "passed", "setup"), phase("t::a", "passed")], Status.PASSED),
        ([phase("t::a", "failed")], Status.FAILED),
        ([phase("t::a", "passed"), phase("t::a", "failed", "teardown")], Status.ERROR),
        ([phase("t::a", "failed", "setup")], Status.ERROR),
        ([phase("t::a", "skipped", "setup")], Status.SKIPPED),
        ([phase("t::a", "xfailed")], Status.XFAIL),
        ([phase("t::a", "rerun"), phase("t::a", "passed")], Status.PASSED),
        ([phase("t::a", "failed"), phase("t::a", "passed")], Status.FAILED),
        ([{"test": "t::a", "outcome": "addSuccess", "also": ["x"]}], Status.PASSED),
        ([{"test": "t::a", "outcome": "addSkip", "also": [""]}], Status.SKIPPED),
        ([b"[" * 5000 + b"\n", phase("t::a", "passed")], Status.PASSED),
    ],
)
def test_a_test_has_the_worst_that_was_reported_of_it(reports: list[Any], status: Status) -> None:
    results = received(*reports, *CONTROL)
    assert results.statuses["t::a"] is status
    assert results.doubt == ""


@pytest.mark.parametrize(
    ("reports", "doubt"),
    [
        ([], "no test was reported"),
        ([phase("a", "passed")], "the tests did not run to their end"),
        ([phase("a", "passed"), {"control": "t::c"}, {"finished": True}], "must fail"),
        (
            [{"control": "t::c"}, phase("t::c", "passed"), {"finished": True}],
            "a test that must fail did not",
        ),
        ([b"x" * 2**17 + b"\n"], "no test was reported"),
    ],
)
def test_a_report_that_is_not_whole_says_nothing(reports: list[Any], doubt: str) -> None:
    assert doubt in received(*reports).doubt


def test_without_the_key_nothing_is_read() -> None:
    assert received(phase("a", "passed"), *CONTROL, key="other").doubt == "no test was reported"


def test_a_test_is_known_by_the_names_of_every_set() -> None:
    assert set(names_of("a/t.py::T::test_x[1 2]")) == {
        "a/t.py::T::test_x[1 2]",
        "a/t.py::T::test_x[1",
        "T.test_x[1 2]",
    }
    assert "t.py::test[/c.txt]" in set(names_of("t.py::test[/a/b/c.txt]"))
    assert "t.py::test[/b]" not in set(names_of("t.py::test[//a/b]"))


@pytest.mark.parametrize(
    ("line", "name", "status"),
    [
        ("PASSED tests/a.py::test_x[1 2]", "tests/a.py::test_x[1", Status.PASSED),
        ("FAILED tests/a.py::test_x - assert 0", "tests/a.py::test_x", Status.FAILED),
        ("tests/a.py::test_x PASSED   [ 50%]", "tests/a.py::test_x", Status.PASSED),
        ("\x1b[31mERROR\x1b[0m tests/a.py::test_x", "tests/a.py::test_x", Status.ERROR),
        ("test_a (m.T) ... ok", "test_a (m.T)", Status.PASSED),
        ("test_a (m.T) ... skipped 'why'", "test_a (m.T)", Status.SKIPPED),
        ("test_a (m.T) ... FAIL", "test_a (m.T)", Status.FAILED),
        ("test_sqrt ok", "test_sqrt", Status.PASSED),
        ("test_sqrt E", "test_sqrt", Status.ERROR),
        ("--- PASS: TestSum (0.00s)", "TestSum", Status.PASSED),
        ("--- FAIL: TestSum/two (0.00s)", "TestSum/two", Status.FAILED),
        ("test sums::total ... ok", "sums::total", Status.PASSED),
        ("test sums::total ... FAILED", "sums::total", Status.FAILED),
        ("ok 3 - adds up", "adds up", Status.PASSED),
        ("not ok 4 - adds up", "adds up", Status.FAILED),
        ("ok 5 - adds up # SKIP why", "adds up", Status.SKIPPED),
    ],
)
def test_printed_results_are_read(line: str, name: str, status: Status) -> None:
    assert parse_output(f"noise\n{line}\n").statuses[name] is status


def test_of_results_printed_twice_the_worse_one_counts() -> None:
    for text in ("PASSED a::b\nFAILED a::b", "FAILED a::b\nPASSED a::b"):
        assert not parse_output(text).good("a::b")
    assert parse_output("SKIPPED [1] a.py:3: why").statuses == {}
