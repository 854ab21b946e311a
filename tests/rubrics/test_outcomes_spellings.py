"""How languages, units and fractions spell a number, and what denies one or makes it another."""

from __future__ import annotations

from fractions import Fraction

import pytest

from vf.rubrics.outcomes.numbers import only_number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5 squared", None),
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
        ("nearly 5", None),
        ("just under 5", None),
        ("5-ish", None),
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
def test_a_spelling_of_one_number_is_read_and_no_other(
    text: str, value: Fraction | int | None
) -> None:
    assert only_number(text) == value
