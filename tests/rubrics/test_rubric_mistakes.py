"""What authors get wrong in a rubric, and the line that each error says to write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import vf
from tests.rubrics.test_rubric_scoring import PLACE, Place, half, one, score
from vf.runtime.errors import RubricError


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: vf.Rubric(funcs=[one, half], weights=[1.0, 0.2]),  # type: ignore[arg-type]
            r"write vf\.WeightedSum\(\[one, half\], weights=\[1\.0, 0\.2\]\)",
        ),
        (lambda: vf.Rubric([one, half]), r"write vf\.WeightedSum\(\[one, half\]\)"),  # type: ignore[arg-type]
        (lambda: vf.Rubric(one, penalty=[half]), "'penalty'. Did you mean 'penalties'"),  # type: ignore[arg-type]
        (vf.Rubric, r"needs an outcome, .* vf\.Rubric\(outcome="),
    ],
)
def test_habits_of_verifiers_are_refused_with_the_line_to_write(
    make: Callable[[], Any], said: str
) -> None:
    with pytest.raises(vf.ConfigError, match=said):
        make()


@pytest.mark.parametrize(
    ("rubric", "write"),
    [
        ([one, half], r"vf\.WeightedSum\(\[one, half\]\)"),
        (half, r"vf\.Rubric\(outcome=half\)"),
        (vf.WeightedSum, r"WeightedSum\(\.\.\.\)"),
        (None, r"vf\.Rubric\(outcome=\.\.\.\)"),
    ],
)
def test_an_environment_whose_rubric_is_none_is_refused_with_the_line_to_write(
    rubric: Any, write: str
) -> None:
    environment = vf.Environment()
    environment.rubric = rubric
    with pytest.raises(
        vf.ConfigError, match=f"'Environment': rubric is .*; write rubric = {write}"
    ):
        asyncio.run(vf.evaluate(environment, vf.ScriptedModel([]), tasks=[vf.Task("t", "p")]))


def right_or_nothing(trace: vf.Trace) -> float:  # type: ignore[return]  # noqa: RET503
    if trace.reply == trace.task.answer:
        return 1.0


async def late_or_nothing(trace: vf.Trace) -> float:  # type: ignore[return]  # noqa: RET503
    async with asyncio.timeout(None):  # noqa: ASYNC100
        if trace.turns:
            return 1.0


def matched_or_nothing(trace: vf.Trace) -> float:  # type: ignore[return]
    match trace.task.answer:
        case "5":
            return 1.0
        case 5:
            return 0.0


def tried_or_nothing(trace: vf.Trace) -> float:  # type: ignore[return]
    try:
        return float(trace.reply)
    except ValueError:
        pass


def looped_or_nothing(trace: vf.Trace) -> float:  # type: ignore[return]
    while True:
        if not trace.turns:
            break


def computed(trace: vf.Trace) -> None:
    trace.reply.strip()


@PLACE
@pytest.mark.parametrize(
    "fn",
    [
        right_or_nothing,
        late_or_nothing,
        matched_or_nothing,
        tried_or_nothing,
        looped_or_nothing,
        computed,
    ],
)
def test_a_scorer_that_forgets_to_return_is_named_with_its_line(place: Place, fn: Any) -> None:
    where = rf"{fn.__name__}' returned None: .*test_rubric_mistakes\.py, line \d+.*`return None`"
    with pytest.raises(RubricError, match=where):
        score(place(fn))


def stated(trace: vf.Trace) -> float | None:
    if trace.turns:
        return 1.0
    return None


def bare(trace: vf.Trace) -> float | None:
    match trace.turns:
        case []:
            return  # type: ignore[return-value]  # noqa: RET502
        case _:
            return 1.0


def handed_on(trace: vf.Trace) -> float | None:
    try:
        value = stated(trace)
    finally:
        del trace
    while True:
        return value


@PLACE
@pytest.mark.parametrize("fn", [stated, bare, handed_on, lambda trace: None])
def test_a_none_that_was_written_means_that_it_does_not_apply(place: Place, fn: Any) -> None:
    score(place(fn))
