"""A second number or a bound that is stated in words is a hedge, as it is in digits."""

from __future__ import annotations

import pytest

from tests.rubrics.one_answer import score
from vf.rubrics.outcomes import math_equal, numeric, whole_message
from vf.rubrics.outcomes.hedges import hedges

pytestmark = pytest.mark.usefixtures("in_this_process")

NUMERIC = numeric(extract=whole_message)
MATH = math_equal(timeout=60.0, extract=whole_message)

HEDGED = [
    "six or 7",
    "7 or six",
    "between four and 7",
    "either five or 7",
    "seven, eight or 7",
    "7 or maybe eight",
    "twenty-one or 7",
    "one or 7",
    "one to 7",
    "between one and 7",
    "half or 7",
    "7 and eight",
    "a dozen or 7",
    "SIX or 7",
    "7 or none",
    "7 or x",
    "x or 7",
    "7, or so",
    "7 apples or more",
    "not six but 7",
    "at least 7",
    "7 at most",
    "no more than 7",
    "less than 7",
    "up to 7",
    "over $7",
    "exceeds 7",
    "Ⅵ or 7",
    "7 or possibly another",
    "7 or something else",
    "7 or not",
]


@pytest.mark.parametrize("hedge", HEDGED)
def test_hedges_in_words_do_not_pay(hedge: str) -> None:
    assert score(NUMERIC, hedge, 7) == 0.0
    assert score(MATH, hedge, "7") == 0.0


@pytest.mark.parametrize(
    "hedge",
    [
        r"\text{six or }7",
        r"7\text{ or six}",
        r"7\text{ or maybe eight}",
        r"\text{at least }7",
        r"7\text{ at most}",
        r"7\text{ or more}",
        r"\text{one or }7",
        r"7\text{ (or six)}",
    ],
)
def test_hedges_in_the_text_of_latex_do_not_pay(hedge: str) -> None:
    assert score(MATH, hedge, "7") == 0.0
    assert score(NUMERIC, hedge, 7) == 0.0
    assert score(MATH, hedge, hedge) == 1.0, "the golden answer's own words are right"


@pytest.mark.parametrize(
    "text",
    ["the one answer is 7", "7 is the one", "7 seconds", "the first is 7", "about 7", "7 of them"],
)
def test_words_that_are_no_second_number_do_not_matter(text: str) -> None:
    assert hedges(text) == set()
    assert score(NUMERIC, text, 7) == 1.0


def test_alternatives_are_an_answer_where_they_are_asked_for() -> None:
    assert score(MATH, r"1 \text{ or } 2", "1, 2") == 1.0
    assert score(MATH, r"1 \text{ or } 2", "1") == 0.0
