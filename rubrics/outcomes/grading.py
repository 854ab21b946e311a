"""Grading code: it runs in a sandbox, and the results are compared here.

The expected values never enter the sandbox, so there is nothing in it to read, patch or print
that would pass a test: neither "all passed" nor an early exit, a patched builtin or a forged line.
"""

from __future__ import annotations

import inspect
import json
import secrets
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vf.rubrics.outcomes import grader_program
from vf.sandbox.contract import Sandbox

# Seconds of processor time for one call, and for the interpreter to start and run the source once.
CALL_LIMIT = 2.0
START_LIMIT = 10.0


@dataclass(frozen=True, slots=True)
class Case:
    """A test: what to evaluate, and what should come out.

    Attributes:
        code: Python whose last line is an expression.
        value: What it should evaluate to: JSON, where a tuple counts as a list.
        raises: The exception that it should raise instead, by name.
    """

    code: str
    value: Any = None
    raises: str | None = None

    def holds(self, outcome: Any) -> bool:
        """Return whether this outcome (JSON from the sandbox) is the right one."""
        if not isinstance(outcome, dict):
            return False
        if self.raises is not None:
            names = outcome.get("raised")
            return "value" not in outcome and isinstance(names, list) and self.raises in names
        return "value" in outcome and same(outcome["value"], self.value)


@dataclass(frozen=True, slots=True)
class Grade:
    """Which cases hold, in their order, and how many calls ran out of time."""

    passed: list[bool]
    timeouts: int = 0

    @property
    def all_passed(self) -> bool:
        """Whether every case holds."""
        return all(self.passed)


async def grade(sandbox: Sandbox, source: str, cases: Sequence[Case]) -> Grade:
    """Run the source once, then every case in a process of its own, and compare.

    Args:
        sandbox: The sandbox to run in; it should be fresh.
        source: Python. If it fails, no case holds.
        cases: The tests.

    Raises:
        SandboxError: If the sandbox is lost: nothing is known about the code.
    """
    nonce = secrets.token_hex(16)
    request = {
        "source": source,
        "calls": [case.code for case in cases],
        "limit": CALL_LIMIT,
        "start_limit": START_LIMIT,
        "nonce": nonce,
    }
    result = await sandbox.exec(
        ["python3", "-I", "-c", inspect.getsource(grader_program)],
        input=json.dumps(request),
        timeout=grader_program.WAITING
        * (START_LIMIT + (grader_program.MAX_TIMEOUTS + 1) * CALL_LIMIT),
        max_output=len(cases) * 2 * grader_program.MAX_VALUE,
    )
    outcomes: dict[int, Any] = {}
    timeouts = int(result.timed_out or result.returncode == 128 + signal.SIGXCPU)
    for line in result.stdout.splitlines():
        head, _, rest = line.partition(" ")
        index, _, text = rest.partition(" ")
        if head != nonce or not index.isdecimal() or len(index) > 6:
            continue
        try:
            outcome = json.loads(text)
        except (ValueError, RecursionError):  # a number of 5,000 digits, a list 5,000 deep
            continue
        if int(index) in outcomes:
            continue
        outcomes[int(index)] = outcome
        timeouts += outcome == {"timed_out": True}
    return Grade([case.holds(outcomes.get(i)) for i, case in enumerate(cases)], timeouts)


def same(value: object, expected: object) -> bool:
    """Return whether two JSON values are equal in type too: neither 1.0 nor True is 1."""
    if isinstance(expected, list | tuple):
        return (
            isinstance(value, list)
            and len(value) == len(expected)
            and all(map(same, value, expected))
        )
    if isinstance(expected, dict):
        return (
            isinstance(value, dict)
            and value.keys() == expected.keys()
            and all(same(value[key], expected[key]) for key in expected)
        )
    return type(value) is type(expected) and value == expected
