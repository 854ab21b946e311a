"""Checks of the contract: their results and their assertions."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from vf.sandbox.contract import Sandbox

LONGEST = 200  # characters of a value that a report shows

Body = Callable[[Sandbox], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Check:
    """A check of one promise of the contract.

    Attributes:
        group: Its group, such as "files".
        name: The promise, as a sentence.
        body: A function that checks it; raises :class:`Broken` or :class:`Skipped`.
    """

    group: str
    name: str
    body: Body


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check.

    Attributes:
        group: Its group.
        name: The promise.
        outcome: Whether it was kept; "skipped" where it does not apply to the backend.
        expected: The expected value; the reason, if it was skipped.
        came: The actual value.
        seconds: Its duration.
    """

    group: str
    name: str
    outcome: Literal["passed", "failed", "skipped"]
    expected: str = ""
    came: str = ""
    seconds: float = 0.0


class Broken(Exception):
    """The sandbox did not do what the contract promises.

    Args:
        expected: The expected value.
        came: The actual value.
    """

    def __init__(self, expected: str, came: str) -> None:
        super().__init__(f"expected {expected}, got {came}")
        self.expected, self.came = expected, came


class Skipped(Exception):
    """The check does not apply to this backend; the message says why."""


def check(group: str, name: str) -> Callable[[Body], Check]:
    """Turn a function into a check."""
    return lambda body: Check(group, name, body)


def checks_of(module: Mapping[str, object]) -> list[Check]:
    """Return the checks that a module defines, in its order."""
    return [value for value in module.values() if isinstance(value, Check)]


def short(value: object) -> str:
    """Return a value's text, without the middle of a long one."""
    if isinstance(value, (str, bytes)) and len(value) > LONGEST:
        half = LONGEST // 2
        unit = "bytes" if isinstance(value, bytes) else "characters"
        return f"{value[:half]!r} ... {value[-half:]!r} ({len(value)} {unit})"
    text = repr(value)
    return text if len(text) <= 4 * LONGEST else f"{text[: 2 * LONGEST]} ... {text[-LONGEST:]}"


def expect(name: str, expected: object, came: object) -> None:
    """Check that a value is the expected one.

    Raises:
        Broken: If they differ.
    """
    if type(expected) is not type(came) or expected != came:
        raise Broken(f"{name} = {short(expected)}", short(came))


def require(holds: object, expected: str, came: object) -> None:
    """Check that a condition holds.

    Raises:
        Broken: If it does not hold.
    """
    if not holds:
        raise Broken(expected, short(came))


@contextlib.contextmanager
def refusal(kind: type[Exception], of: str) -> Iterator[None]:
    """Check that the block raises an exception of a kind.

    Raises:
        Broken: If it raises none, or another one.
    """
    expected = f"{kind.__name__} for {of}"
    try:
        yield
    except kind:
        return
    except Exception as exc:
        raise Broken(expected, repr(exc)) from exc
    raise Broken(expected, "no exception")
