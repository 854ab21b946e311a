"""The result of each test: as reported, or parsed from a program's output."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

_MOST_BYTES = 64 * 2**20  # of a report: a policy's code can write one, too
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Status(IntEnum):
    """The result of a test, from good to bad."""

    PASSED = 0
    XFAIL = 1  # it fails as its author said it does
    XPASS = 2
    SKIPPED = 3
    FAILED = 4
    ERROR = 5


# Passed, as SWE-bench counts it.
GOOD = frozenset({Status.PASSED, Status.XFAIL})

_PYTEST = {
    "passed": Status.PASSED,
    "failed": Status.FAILED,
    "skipped": Status.SKIPPED,
    "xfailed": Status.XFAIL,
    "xpassed": Status.XPASS,
}
_UNITTEST = {
    "addSuccess": Status.PASSED,
    "addFailure": Status.FAILED,
    "addError": Status.ERROR,
    "addSkip": Status.SKIPPED,
    "addExpectedFailure": Status.XFAIL,
    "addUnexpectedSuccess": Status.XPASS,
}


@dataclass(slots=True)
class Results:
    """The results of tests.

    Attributes:
        statuses: By name; a test can have several names, and a name several tests, of which the
            worst counts.
        finished: Whether the run completed.
        controls: Tests that must fail, by name, which nothing but the report knows.
    """

    statuses: dict[str, Status] = field(default_factory=dict)
    finished: bool = False
    controls: list[str] = field(default_factory=list)

    def add(self, names: Iterable[str], status: Status) -> None:
        """Record a test's status under its names."""
        for name in filter(None, names):
            self.statuses[name] = max(status, self.statuses.get(name, status))

    def good(self, name: str) -> bool:
        """Return whether a test has passed."""
        return self.statuses.get(name) in GOOD

    @property
    def doubt(self) -> str:
        """Why the statuses are unreliable; empty if they are reliable."""
        if not self.statuses and not self.finished:
            return "no test was reported"
        if not self.finished:
            return "the tests did not run to their end"
        for name in self.controls:
            if self.statuses.get(name, Status.PASSED) <= Status.XPASS:
                return "a test that must fail did not"
        return ""


class Receiver:
    """Takes one report from the process that runs the tests.

    Args:
        key: The secret at the start of the report; others are not read.
    """

    def __init__(self, key: str) -> None:
        self.results = Results()
        self._key = key
        self._taken = False
        self._done = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read a whole connection, if it is the report's."""
        try:
            if not self._taken and _decoded(await reader.readline()).get("key") == self._key:
                self._taken = True
                await self._read(reader)
                self._done.set()
        except (OSError, ValueError):  # a line without an end, or a connection that was reset
            if self._taken:
                self._done.set()
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        left = _MOST_BYTES
        async for line in reader:
            left -= len(line)
            if left < 0:
                return
            self._take(_decoded(line))
            if self.results.finished:  # what the process has forked may hold the connection
                return

    async def ended(self, timeout: float) -> None:
        """Wait until the whole report has been read, for at most ``timeout`` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._done.wait()

    def _take(self, record: Mapping[str, Any]) -> None:
        name, outcome = record.get("test"), record.get("outcome")
        if isinstance(name, str):
            status = self._status(record, str(outcome))
            if status is not None:
                also = record.get("also")
                others = [text for text in also if isinstance(text, str)] if also else []
                self.results.add([*names_of(name), *others], status)
        if isinstance(control := record.get("control"), str):
            self.results.controls.append(control)
        if record.get("finished") is True:
            self.results.finished = True

    def _status(self, record: Mapping[str, Any], outcome: str) -> Status | None:
        if (phase := record.get("phase")) is None:
            return _UNITTEST.get(outcome)
        status = _PYTEST.get(outcome)
        if phase == "call" or status is None:  # `rerun` is none: another attempt follows
            return status
        if status is Status.FAILED:
            return Status.ERROR
        # Before and after the test itself, only failures count.
        return None if status is Status.PASSED else status


def _decoded(line: bytes) -> Mapping[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def names_of(nodeid: str) -> Iterator[str]:
    """Yield the names of a pytest test in datasets."""
    yield nodeid
    # SWE-bench's come from printed lines, of which they are the first word.
    if (first := nodeid.split(maxsplit=1)[0]) != nodeid:
        yield first
    # Its parsers for some repositories cut a parameter that is a path down to its last part.
    cut = re.sub(r"\[(/(?!/)[^*\]]*)\]$", lambda match: f"[/{match[1].rsplit('/', 1)[-1]}]", nodeid)
    if cut != nodeid:
        yield cut
    # R2E-Gym's are without the file, and joined by dots.
    if "::" in nodeid:
        yield ".".join(nodeid.split("::")[1:]).split(" - ")[0]


_FIRST = re.compile(r"(PASSED|FAILED|SKIPPED|ERROR|XFAIL|XPASS)\s+(\S+)")
_LAST = re.compile(r"(\S+)\s+(PASSED|FAILED|SKIPPED|ERROR|XFAIL|XPASS)(?:\s.*)?")
_UNITTEST_LINE = re.compile(r"(.+?) \.{3}\s+(ok|OK|FAIL|ERROR|skipped\b.*|expected failure)")
_SYMPY_LINE = re.compile(r"(test_\S+) (ok|F|E|f|s)(?: .*)?")
_GO_LINE = re.compile(r"--- (PASS|FAIL|SKIP): (\S+)(?: .*)?")
_TAP_LINE = re.compile(r"(not )?ok \d+ (?:- )?(.+?)(?: # (SKIP|TODO).*)?", re.IGNORECASE)
_CARGO_LINE = re.compile(r"test (.+?) \.{3} (ok|FAILED|ignored)")
_WORDS = {status.name: status for status in Status} | {
    "ok": Status.PASSED,
    "OK": Status.PASSED,
    "PASS": Status.PASSED,
    "FAIL": Status.FAILED,
    "F": Status.FAILED,
    "E": Status.ERROR,
    "f": Status.XFAIL,
    "expected failure": Status.XFAIL,
    "s": Status.SKIPPED,
    "SKIP": Status.SKIPPED,
    "ignored": Status.SKIPPED,
}


def parse_output(text: str) -> Results:
    """Parse the results of tests from a program's output.

    Known are the lines of ``pytest -rA`` and ``-v``, unittest and Django, SymPy, ``go test -v``,
    ``cargo test`` and TAP. A test that is listed twice has the worse status.
    """
    results = Results(finished=True)
    for line in _COLOUR.sub("", text).splitlines():
        line = line.strip()
        if match := _CARGO_LINE.fullmatch(line) or _UNITTEST_LINE.fullmatch(line):
            word = match[2].split()[0] if match[2].startswith("skipped") else match[2]
            results.add([match[1]], _WORDS.get(word, Status.SKIPPED))
        elif match := _GO_LINE.fullmatch(line):
            results.add([match[2]], _WORDS[match[1]])
        elif match := _FIRST.match(line):
            if not match[2].startswith("["):  # SKIPPED [1] is a count
                results.add(names_of(match[2]), _WORDS[match[1]])
        elif match := _LAST.fullmatch(line) or _SYMPY_LINE.fullmatch(line):
            results.add(names_of(match[1]), _WORDS[match[2]])
        elif match := _TAP_LINE.fullmatch(line):
            status = Status.FAILED if match[1] else Status.PASSED
            results.add([match[2]], Status.SKIPPED if match[3] else status)
    return results
