"""Numbers: what a text states, and the tolerance of its value."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rubrics.one_answer import score
from vf.rubrics.outcomes import math_equal, numeric, whole_message
from vf.rubrics.outcomes.numbers import only_number
from vf.runtime.errors import ConfigError, RubricError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", 42),
        ("-42.", -42),
        ("−42", -42),
        ("+3.50 €", Fraction(7, 2)),
        ("about 1,234,567 people", 1234567),
        ("6.02e23", 602 * 10**21),
        (".5", Fraction(1, 2)),
        ("3/4 of it", Fraction(3, 4)),
        ("12%", 12),
        ("9" * 300, int("9" * 300)),
        ("12 or 13", None),
        ("12, 13", None),
        ("12,13", None),
        ("1,2345", None),
        ("3.1.4", None),
        ("10-12", None),
        ("x2", None),
        ("2^10", None),
        ("1/0", None),
        ("1/2/3", None),
        ("twelve", None),
        ("12 12", None),
        ("nan", None),
        ("inf", None),
        ("1e5000", None),
        ("9" * 3000, None),
        ("", None),
    ],
)
def test_a_text_holds_one_number_or_none(text: str, value: Any) -> None:
    assert only_number(text) == value


DASHES = "-−–—‒―‐‑﹣－⁻➖"


@given(
    st.sampled_from(["", "x = ", "it is: ", "**", "("]),
    st.sampled_from([*DASHES, "minus ", "Negative "]),
    st.sampled_from(["", " ", "\u00a0", "$", " €", "\\$", "(", "{"]),
    st.integers(1, 10**9),
)
def test_no_spelling_of_a_minus_is_lost(before: str, minus: str, gap: str, value: int) -> None:
    assert only_number(f"{before}{minus}{gap}{value}") == -value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("it is -5", -5),
        ("$-5", -5),
        ("-5 °C", -5),
        ("the change: +5", 5),
        ("plus 5", 5),
        ("<b>-5</b>", -5),
        ("=> 5", 5),
        ("x := 5", 5),
        ("- 3 / 4", Fraction(-3, 4)),
        ("5e−3", Fraction(1, 200)),
        ("5 - because", 5),
        ("5!", 5),
        ("-٥", -5),
        # A second sign, or a dash that is no sign:
        ("--5", None),
        ("+-5", None),
        ("minus -5", None),
        ("plus or minus 5", None),
        ("x - 5", None),
        ("x-5", None),
        ("Total – 5", None),
        ("answer—5", None),
        ("5-", None),
        ("5 −", None),
        # Another number than its digits say:
        ("5 million", None),
        ("5 dozen", None),
        ("5²", None),
        ("5 Ⅷ", None),
        ("5 and a half", None),
        ("5 point five", None),
        ("√5", None),
        ("sqrt(5)", None),
        (r"\sqrt{5}", None),
        ("half of 5", None),
        ("5π", None),
        ("5 π", None),
        # Several numbers:
        ("±5", None),
        (r"\pm 5", None),
        ("> 5", None),
        ("≥ 5", None),
        ("!= 5", None),
        ("≠5", None),
        ("not 5", None),
        ("5+", None),
        ("5 or more", None),
        ("5 and/or another", None),
        ("5 give or take", None),
        ("|-5|", None),
        # What cannot be seen:
        ("-\u200b5", None),
        ("5\u0338", None),
        ("5\u20e3", None),
        # As words, fractions, units and other languages spell it:
        ("5 to the third", None),
        ("5 grand", None),
        (r"5\pi", None),
        ("5 less one", None),
        ("101 in binary", None),
        ("5 × 7.5½", None),
        ("the square of 5", None),
        ("the reciprocal of 5", None),
        ("a third of 6", None),
        ("5 < x", None),
        ("5 ≤ x", None),
        # Numbers with a fraction, or a unit without a space:
        ("½", Fraction(1, 2)),
        ("5½", Fraction(11, 2)),
        ("-5 ½", Fraction(-11, 2)),
        ("5 1/2 cups", Fraction(11, 2)),
        (r"5\frac{1}{2}", Fraction(11, 2)),
        ("5 3/2", None),
        ("5 0/2", None),
        ("5kg", 5),
        ("5 m/s^2", 5),
        (r"5\,\mathrm{m/s^2}", 5),
        ("5k", None),
        ("5x", None),
        # Thousands and decimals as other languages write them:
        ("1.234.567,89", Fraction("1234567.89")),
        ("1.234,5", Fraction("1234.5")),
        ("1 234 567,8", Fraction("1234567.8")),
        ("1 234 567", 1234567),
        ("12,34,567", 1234567),
        ("12,34,56", None),
        ("1 23 456", None),
        ("1.234,5.6", None),
        # Denied:
        ("isn't 5", None),
        ("isn’t 5", None),
        ("never 5", None),
        ("neither 5", None),
        ("anything but 5", None),
        ("5 is wrong", None),
        ("5 (wrong)", None),
        ("5 isn't it", None),
        ("5? No", None),
    ],
)
def test_what_stands_around_a_number_is_part_of_its_value(text: str, value: Any) -> None:
    assert only_number(text) == value


@given(st.integers(-(10**30), 10**30))
def test_every_whole_number_is_read_back(value: int) -> None:
    assert only_number(f"so {value}.") == value
    assert only_number(f"{value:,}") == value


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e200, max_value=1e200))
def test_every_float_is_right_for_itself(value: float) -> None:
    assert score(numeric(0.0), f"Answer: {value!r}", value) == 1.0


@given(st.text(alphabet="0123456789.,eE+-/ x", max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    value = only_number(text)
    assert value is None or isinstance(value, Fraction)


@pytest.mark.parametrize("text", ["1,", "1e", "111,222,", "1/", "-"])
def test_a_hostile_text_is_read_in_linear_time(text: str) -> None:
    """In quadratic time the test would never end."""
    assert score(numeric(extract=whole_message), text * 1_000_000, 1) == 0.0


def test_the_tolerance_is_absolute_or_a_share_of_the_right_answer() -> None:
    assert score(numeric(0.5), "Answer: 10.5", 10) == 1.0
    assert score(numeric(0.5), "Answer: 10.51", 10) == 0.0
    assert score(numeric(0, relative=0.1), "Answer: 110", "100") == 1.0
    assert score(numeric(0, relative=0.1), "Answer: 111", 100) == 0.0
    assert score(numeric(0, relative=0.1), "Answer: 90", -100) == 0.0
    assert score(numeric(0), "Answer: 9007199254740993", 9007199254740992) == 0.0
    assert score(numeric(0), "Answer: 0.1", 0.1) == 1.0


def test_a_small_answer_is_not_any_small_number() -> None:
    assert score(numeric(), "Answer: 6.63e-34", 1.6e-19) == 0.0
    assert score(numeric(), "Answer: 3e-7", "1e-7") == 0.0
    assert score(numeric(), "Answer: 3e-7", 3e-7) == 1.0
    assert score(numeric(), "Answer: 0.0333333333", "1/30") == 1.0
    assert score(numeric(), "Answer: 1000.0000009", 1000) == 1.0
    assert score(numeric(), "Answer: 3e-7", 0) == 0.0


@pytest.mark.parametrize(
    "hedge", ["Answer: 5\nAnswer: 6", "Answer: 5 or 6", "Answer: 5-6", "5", "Answer: 5±1", ""]
)
def test_several_numbers_are_not_an_answer(hedge: str) -> None:
    assert score(numeric(), hedge, 5) == 0.0
    assert score(numeric(), hedge, 6) == 0.0


def test_answers_that_are_all_near_enough_are_one_answer() -> None:
    assert score(numeric(0.1), "Answer: 9.95\nAnswer: 10", 10) == 1.0


@pytest.mark.parametrize("answer", [True, None, "five", "5 or 6", math.nan, math.inf, [5]])
def test_a_golden_answer_that_is_not_a_number_is_an_error(answer: Any) -> None:
    with pytest.raises(RubricError, match=r"'numeric'.*the-task.*must be a finite number"):
        score(numeric(), "Answer: 5", answer)


@pytest.mark.parametrize(
    ("outcome", "settings"),
    [
        (numeric, {"tolerance": -1}),
        (numeric, {"tolerance": math.nan}),
        (numeric, {"relative": 1.0}),
        (math_equal, {"precision": 0}),
        (math_equal, {"timeout": 0}),
    ],
)
def test_wrong_settings_are_refused_at_load_time(outcome: Any, settings: Any) -> None:
    with pytest.raises(ConfigError, match=f"{outcome.__name__}: {next(iter(settings))}"):
        outcome(**settings)
