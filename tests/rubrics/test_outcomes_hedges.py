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
    # "Or" in other languages, beside numbers in digits or words
    "6 oder 7",
    "sechs oder 7",
    "7 oder mehr",
    "6 o 7",
    "7 o seis",
    "sept ou 7",
    "шесть или 7",
    "7 lub sześć",
    "altı veya 7",
    "7 hoặc sáu",
    "6或7",
    "7 または 6",
    "여섯 또는 7",
    "ستة أو 7",
    "7 או שש",
]
# One number of which somebody is not sure, or which is rounded: it is held to its value, and names
# no other. An expression is all that math_equal reads, so words are variables to it.
UNSURE = [
    "about 7",
    "roughly 7",
    "approximately 7",
    "approx. 7",
    "around 7",
    "~7",
    "≈ 7",
    "close to 7",
    "maybe 7",
    "probably 7",
    "I think 7",
    "7, I guess",
    "7?",
    "7 (?)",
    "7 perhaps",
    "etwa 7",
    "environ 7",
    "около 7",
]
# An "or", even without a second number, and what says that it is another one: no answer.
ANOTHER = [
    "7 or so",
    "7, more or less",
    "7 give or take",
    "7-ish",
    "almost 7",
    "nearly 7",
    "just under 7",
    "7 halves",
    "7 tenths",
    "7 hundredths",
    "7 score",
    "7 doubled",
    "7 squared",
    "7 wrong",
]


@pytest.mark.parametrize(
    ("text", "value"), [*((each, 1.0) for each in UNSURE), *((each, 0.0) for each in ANOTHER)]
)
def test_doubt_is_no_second_answer(text: str, value: float) -> None:
    assert score(NUMERIC, text, 7) == value
    assert score(NUMERIC, text, 8) == 0.0
    assert value or score(MATH, text, "7") == 0.0


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
    [
        "the one answer is 7",
        "7 is the one",
        "7 seconds",
        "the first is 7",
        "7 o'clock",
        "7 of them",
    ],
)
def test_words_that_are_no_second_number_do_not_matter(text: str) -> None:
    assert hedges(text) == set()
    assert score(NUMERIC, text, 7) == 1.0


def test_alternatives_are_an_answer_where_they_are_asked_for() -> None:
    assert score(MATH, r"1 \text{ or } 2", "1, 2") == 1.0
    assert score(MATH, r"1 \text{ or } 2", "1") == 0.0
