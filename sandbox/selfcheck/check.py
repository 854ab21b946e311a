"""What a check of the contract is, and how one says what it expected and what came."""

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
    """One thing that the contract promises.

    Attributes:
        group: What it belongs to: "files", say.
        name: What is promised, as a sentence.
        body: Finds out; raises :class:`Broken` or :class:`Skipped`.
    """

    group: str
    name: str
    body: Body


@dataclass(frozen=True, slots=True)
class CheckResult:
    """How a check went.

    Attributes:
        group: What it belongs to.
        name: What was promised.
        outcome: Whether it was kept; "skipped" where the backend cannot have it, by its nature.
        expected: What should have come; the reason, where it was skipped.
        came: What came instead.
        seconds: How long it took.
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
        expected: What should have come.
        came: What came.
    """

    def __init__(self, expected: str, came: str) -> None:
        super().__init__(f"expected {expected}, got {came}")
        self.expected, self.came = expected, came


class Skipped(Exception):
    """The check says nothing about this backend; the message says why."""


def check(group: str, name: str) -> Callable[[Body], Check]:
    """Make a check of a function."""
    return lambda body: Check(group, name, body)


def checks_of(module: Mapping[str, object]) -> list[Check]:
    """Return the checks that a module defines, in its order."""
    return [value for value in module.values() if isinstance(value, Check)]


def short(value: object) -> str:
    """Show a value, the middle of a long one left out."""
    if isinstance(value, (str, bytes)) and len(value) > LONGEST:
        half = LONGEST // 2
        unit = "bytes" if isinstance(value, bytes) else "characters"
        return f"{value[:half]!r} ... {value[-half:]!r} ({len(value)} {unit})"
    text = repr(value)
    return text if len(text) <= 4 * LONGEST else f"{text[: 2 * LONGEST]} ... {text[-LONGEST:]}"


def expect(what: str, expected: object, came: object) -> None:
    """Hold a value against the one that should have come.

    Raises:
        Broken: They differ.
    """
    if type(expected) is not type(came) or expected != came:
        raise Broken(f"{what} = {short(expected)}", short(came))


def require(holds: object, expected: str, came: object) -> None:
    """Insist on something that is not one value.

    Raises:
        Broken: It does not hold.
    """
    if not holds:
        raise Broken(expected, short(came))


@contextlib.contextmanager
def refusal(kind: type[Exception], of: str) -> Iterator[None]:
    """Insist that the block raises an exception of a kind.

    Raises:
        Broken: It raises none, or another one.
    """
    expected = f"{kind.__name__} for {of}"
    try:
        yield
    except kind:
        return
    except Exception as exc:
        raise Broken(expected, repr(exc)) from exc
    raise Broken(expected, "no exception")
