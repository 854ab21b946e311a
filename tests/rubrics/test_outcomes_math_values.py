"""How mathematical values compare: exact ones exactly, decimals to the digits that count."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rubrics.one_answer import score
from vf.rubrics.outcomes import math_equal
from vf.rubrics.outcomes.units import without_unit

pytestmark = pytest.mark.usefixtures("in_this_process")
MATH = math_equal(timeout=60.0)

SMALL = [
    (r"6.63 \times 10^{-34}", r"1.6 \times 10^{-19}"),
    (r"3 \times 10^{-7}", r"1 \times 10^{-7}"),
    ("0.0000003", "0.0000001"),
    ("6.63e-34", 1.6e-19),
    ("1/2^{98}", "1/2^{99}"),
    ("2^{-98}", "2^{-99}"),
    (r"\frac{1}{30!}", r"\frac{1}{31!}"),
    ("e^{-50}", "e^{-51}"),
    (r"\sqrt{2}/10^{20}", r"\sqrt{3}/10^{20}"),
    (r"10^{-20}", "0"),
    # Inside of what holds numbers:
    (r"\{3 \times 10^{-20}, 1\}", r"\{2 \times 10^{-20}, 1\}"),
    (r"(3 \times 10^{-20}, 1)", r"(2 \times 10^{-20}, 1)"),
    (r"[3 \times 10^{-20}, 1]", r"[2 \times 10^{-20}, 1]"),
    (r"x = 3 \times 10^{-20}", r"x = 2 \times 10^{-20}"),
    (r"x < 3 \times 10^{-20}", r"x < 2 \times 10^{-20}"),
    (r"1 + 3 \times 10^{-20} i", r"1 + 2 \times 10^{-20} i"),
    (r"3 \cdot 10^{-20} x", r"2 \cdot 10^{-20} x"),
    (r"x + 10^{-20}", "x"),
    (
        r"\begin{pmatrix}3 \times 10^{-20}\\1\end{pmatrix}",
        r"\begin{pmatrix}2 \times 10^{-20}\\1\end{pmatrix}",
    ),
]


@pytest.mark.parametrize(("stated", "answer"), SMALL)
def test_small_numbers_are_not_all_equal(stated: str, answer: Any) -> None:
    assert score(MATH, f"\\boxed{{{stated}}}", answer) == 0.0
    assert score(MATH, f"\\boxed{{{answer}}}", answer) == 1.0


@pytest.mark.parametrize(
    ("stated", "answer", "value"),
    [
        ("0.333333", "1/3", 1.0),
        ("0.0333333", "1/30", 1.0),
        ("0.33333", "1/3", 0.0),
        ("3.141593", r"\pi", 1.0),
        ("3.14159", r"\pi", 0.0),
        ("1.9999999", "2", 1.0),
        ("99.99999", "100", 0.0),
        ("1234567.89", "1234567.90", 0.0),
        ("5000001", 5000000.0, 0.0),
        (r"6.02214 \times 10^{23}", r"6.02214076 \times 10^{23}", 1.0),
        (r"6.022 \times 10^{23}", r"6.02214076 \times 10^{23}", 0.0),
        (r"6.63 \times 10^{-34}", 6.63e-34, 1.0),
        ("0.0000003", "3e-7", 1.0),
        ("2e - 1", "2e-1", 1.0),  # Euler's number
        ("10^{60}", "10^{60} + 1", 0.0),
        ("0.3x", "0.1x + 0.2x", 1.0),
        (r"\sqrt{3 + 2\sqrt{2}}", r"1 + \sqrt{2}", 1.0),
        (r"12.5\%", "0.125", 1.0),
        (r"12.5\%", "12.5", 1.0),
        (r"50\%", r"5000\%", 0.0),
        ("12:00", "12:00", 1.0),
        ("12:00", "12:30", 0.0),
        ("x²", "x^2", 1.0),
        ("2x¹⁰", "2x^{10}", 1.0),
        ("5½", "5.5", 1.0),
        ("5 1/2", "5.5", 1.0),
        ("51/2", "5.5", 0.0),
        ("1 000", "1000", 1.0),
        ("1.234,5", "1234.5", 1.0),
        ("５", "5", 1.0),
        ("٥", "5", 1.0),
        (r"5 \text{ or possibly another}", "5", 0.0),
        ("½", r"\frac{1}{2}", 1.0),
        (r"\varnothing", r"\emptyset", 1.0),
        # Signs, words and older commands for what LaTeX has
        ("√3/2", r"\frac{\sqrt{3}}{2}", 1.0),
        ("3√5", r"\sqrt{45}", 1.0),
        ("√(2)", r"\sqrt{3}", 0.0),
        ("∛8", "2", 1.0),
        ("2·3", "6", 1.0),
        ("(−∞, 3)", r"(-\infty,3)", 1.0),
        ("x₁", "x_1", 1.0),
        ("x₁", "x_2", 0.0),
        ("pi/2", r"\frac{\pi}{2}", 1.0),
        ("4pi", r"4\pi", 1.0),
        ("pi", "3.141593", 1.0),
        ("ln(2)", r"\ln 2", 1.0),
        ("sin(x)", r"\sin x", 1.0),
        ("sqrt3", r"\sqrt{3}", 1.0),
        ("2**10", "1024", 1.0),
        (r"{1 \over 2}", "0.5", 1.0),
        (r"\nicefrac{1}{2}", "0.5", 1.0),
        (r"\langle 1, 2 \rangle", r"\langle 1,2\rangle", 1.0),
        (r"\langle 1, 3 \rangle", r"\langle 1,2\rangle", 0.0),
        ("0.1666...", "1/6", 1.0),
        ("0.333...", "0.333", 0.0),
        ("US$5", "5", 1.0),
        ("EUR 5", "5", 1.0),
        # Letters that are variables, which Math-Verify takes for units
        ("2", "2t", 0.0),
        ("x + 2", "x + 2t", 0.0),
        ("2c", "2d", 0.0),
        ("5m", "5s", 0.0),
        ("3", "3h", 0.0),
        ("2 t", "2t", 1.0),
        ("t2", "2t", 1.0),
        # Units
        ("5 cm", "5", 1.0),
        ("5", "5 cm", 1.0),
        ("5m", "5", 1.0),
        ("5 km/h", "5", 1.0),
        ("9.8 m/s^2", "9.8", 1.0),
        ("10 cm²", "10", 1.0),
        ("5 mL", "5", 1.0),
        ("5 °C", "5", 1.0),
        (r"5~\text{cm}", "5", 1.0),
        (r"5\,\frac{\text{m}}{\text{s}}", "5", 1.0),
        (r"5\text{ kg}\cdot\text{m}", "5", 1.0),
        ("5 apples", "5", 1.0),
        ("5 people", "5", 1.0),
        (r"x\text{ cm}", "x", 1.0),
        ("5 meters", r"5\text{ m}", 1.0),
        ("5 square meters", "5 m^2", 1.0),
        ("5 miles per hour", "5 mph", 1.0),
        ("5 students", "5 people", 1.0),
        ("5 x", "5", 0.0),
        ("5 million", "5", 0.0),
        # Two units that differ
        ("5 km", "5 cm", 0.0),
        (r"5\text{ minutes}", "5 hours", 0.0),
        ("5 m/s", "5 m", 0.0),
        ("5 m^2", "5 m^3", 0.0),
    ],
)
def test_values_are_compared_to_the_digits_that_count_and_units_only_where_both_have_one(
    stated: str, answer: Any, value: float
) -> None:
    assert score(MATH, f"\\boxed{{{stated}}}", answer) == value


@pytest.mark.parametrize("text", ["a", "a ", "cm/", r"\text{a}", " ", r"\,", "m ^2 "])
def test_a_hostile_unit_is_read_in_polynomial_time(text: str) -> None:
    """In exponential time the test would never end."""
    hostile = f"5 {text * (900 // len(text))}!"
    assert without_unit(hostile) == (hostile, "")


def test_a_value_that_shows_all_its_numbers_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long polynomial takes longer than its deadline if it is read again for each number."""
    from vf.rubrics.outcomes import math_process

    texts: list[str] = []
    read = math_process._read

    def record(text: str) -> list[Any]:
        texts.append(text)
        return read(text)

    monkeypatch.setattr(math_process, "_read", record)
    polynomial = "x^{4} + 4 x^{3} + 6 x^{2} + 4 x + 1"
    assert math_process.all_equal("(x+1)^{4}", [polynomial], 6)
    assert set(texts) == {"(x+1)^{4}", polynomial}
