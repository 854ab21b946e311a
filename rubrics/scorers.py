"""Scoring functions: checked when a rubric is made, called, and their values validated.

A scorer takes the trace and returns a number, or None where it does not apply. It may be a plain
function (it runs in a thread), a coroutine function, an object with such a ``__call__``, or a
function marked :func:`~vf.runtime.process_pool.cpu_bound` (it runs in a process).
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from numbers import Real
from typing import Any

from vf.rubrics.returning import may_forget_to_return
from vf.runtime.calling import call
from vf.runtime.errors import ConfigError, InfrastructureError, RubricError
from vf.runtime.process_pool import check_picklable, cpu_timeout, run_in_process
from vf.traces.trace import Trace

# What verifiers and TRL call a reward function's arguments, which they recognise by name.
_FOREIGN = ("completion", "completions", "prompt", "prompts", "answer")
ROUNDING = 1e-9  # a value in [0, 1] that is this near to an end is meant to be the end
Value = float | int | bool | None
Scorer = Callable[[Trace], Value | Awaitable[Value]]


class Range(Enum):
    """What a scorer may return."""

    UNIT = "[0, 1]"
    BOOL = "True or False"
    FINITE = "a finite number"


class NoVerdict(RubricError):
    """What is scored keeps its scorer from a value, which others get: it gets the worst one."""


@dataclass(frozen=True, slots=True)
class Part:
    """One function of a rubric.

    Attributes:
        name: How its value is recorded.
        fn: The function.
        range: What it may return.
        worst: The value of a rollout that raises :class:`NoVerdict`; None for a metric.
    """

    name: str
    fn: Scorer
    range: Range = Range.UNIT
    worst: float | None = 0.0


def name_of(fn: Callable[..., Any]) -> str:
    """Return the name by which a function is recorded."""
    return getattr(fn, "__name__", type(fn).__name__)


def check_scorer(fn: Callable[..., Any], takes: str = "the trace") -> None:
    """Check that something can be called with one argument.

    Raises:
        ConfigError: If it cannot, or is marked ``cpu_bound`` and cannot be sent to a process.
    """
    if not callable(fn):
        raise ConfigError(f"{fn!r} is not a function of a trace")
    if inspect.isclass(fn):
        raise ConfigError(f"{name_of(fn)!r} is a class; pass an instance, {name_of(fn)}(...)")
    try:
        signature = inspect.signature(fn)
    except ValueError:  # a builtin without one
        signature = inspect.Signature([inspect.Parameter("x", inspect.Parameter.POSITIONAL_ONLY)])
    try:
        signature.bind(object())
        foreign = next(iter(signature.parameters)) in _FOREIGN
    except TypeError:
        foreign = True
    if foreign:
        raise ConfigError(
            f"{name_of(fn)!r} must take one argument, {takes}; it takes {signature}. A trace has "
            "trace.reply, trace.messages, trace.task.answer, trace.task.info"
        )
    if cpu_timeout(fn) is not None:
        if inspect.iscoroutinefunction(fn):
            raise ConfigError(
                f"{name_of(fn)!r} is marked cpu_bound, so it must be a plain function, not async"
            )
        check_picklable(fn, name_of(fn))


def by_name(
    kind: str, entries: Iterable[Any] | Mapping[str, Any], name: Callable[[Any], str] = name_of
) -> dict[str, Any]:
    """Return functions (or what wraps them) by name.

    Raises:
        ConfigError: If two share a name.
    """
    if isinstance(entries, Mapping):
        return dict(entries)
    if not isinstance(entries, Iterable):
        raise ConfigError(f"{kind} must be a list of functions, or a dict of name to function")
    functions: dict[str, Any] = {}
    for entry in entries:
        if name(entry) in functions:
            raise ConfigError(
                f"two {kind} are called {name(entry)!r}; pass a dict of name to function"
            )
        functions[name(entry)] = entry
    return functions


async def values_of(parts: Sequence[Part], trace: Trace) -> list[float | None]:
    """Call functions on one trace; return their values, in order.

    Raises:
        RubricError: If one raises, or returns something that is not in its range. The message
            names it. Never turned into a 0.
        InfrastructureError: If one raises it: what failed is not the rubric.
        ConfigError: If one raises it.
    """
    # Plain functions share one thread, so a slow or hanging one holds up no other rollout.
    results = await call(_start_all, parts, trace)
    waiting = [index for index, result in enumerate(results) if inspect.isawaitable(result)]
    for index, value in zip(
        waiting, await _all([_waited(results[i], parts[i]) for i in waiting]), strict=True
    ):
        results[index] = value
    return [checked(value, part) for value, part in zip(results, parts, strict=True)]


def _start_all(parts: Sequence[Part], trace: Trace) -> list[Any]:
    results: list[Any] = []
    try:
        for part in parts:
            results.append(_start(part, trace))
    except BaseException:
        for result in results:
            if inspect.iscoroutine(result):
                result.close()
        raise
    return results


def _start(part: Part, trace: Trace) -> Any:
    timeout = cpu_timeout(part.fn)
    if timeout is not None:
        return run_in_process(part.fn, trace, timeout=timeout)
    with blaming(repr(part.name)):
        return part.fn(trace)


async def _waited(result: Awaitable[Value], part: Part) -> Value:
    try:
        with blaming(repr(part.name)):
            return await result
    except NoVerdict:
        return part.worst


@contextmanager
def blaming(what: str) -> Iterator[None]:
    """Turn what a user's function raises into a RubricError that begins with its name.

    Infrastructure errors and config errors pass: what failed is not the rubric.
    """
    try:
        yield
    except (InfrastructureError, ConfigError):
        raise
    except (Exception, SystemExit) as error:
        raise RubricError(f"{what} raised {type(error).__name__}: {error}") from error


async def _all(waits: Sequence[Awaitable[Value]]) -> list[Value]:
    """Await them concurrently; if one raises, cancel the others."""
    if len(waits) < 2:  # the usual case, which needs no tasks
        return [await wait for wait in waits]
    tasks: list[asyncio.Future[Value]] = [asyncio.ensure_future(wait) for wait in waits]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def checked(value: object, part: Part) -> float | None:
    """Return a function's value as a float, or None.

    A value within rounding of 0 or 1 becomes that: ten tenths are 1 - 1e-16, which is no success,
    and 0.4 * 3 - 0.2 is 1 + 2e-16, which is out of range.

    Raises:
        RubricError: If it is not a number, not finite, or out of its range; or is None because
            the function forgot to return.
    """
    if value is None:
        if where := may_forget_to_return(part.fn):
            number = "a number in [0, 1]" if part.range is Range.UNIT else part.range.value
            raise RubricError(
                f"the scorer {part.name!r} returned None: it can end without a return ({where}). "
                f"Return {number} in every case, or write `return None` where it does not apply"
            )
        return None
    # Real covers bool and NumPy's scalars, except NumPy's bool (called bool before NumPy 2).
    if not isinstance(value, Real) and type(value).__name__ not in ("bool", "bool_"):
        raise RubricError(f"{part.name!r} returned {type(value).__name__}, not a number")
    number = float(value)  # type: ignore[arg-type]
    if not math.isfinite(number):
        raise RubricError(f"{part.name!r} returned {number}, not a finite number")
    if part.range is Range.UNIT:
        number = next((end for end in (0.0, 1.0) if abs(number - end) <= ROUNDING), number)
    if part.range is Range.UNIT and not 0.0 <= number <= 1.0:
        raise RubricError(f"{part.name!r} returned {number}, which is outside [0, 1]")
    if part.range is Range.BOOL and number not in (0.0, 1.0):
        raise RubricError(f"{part.name!r} returned {number}: a gate says True or False")
    return number
