"""How mathematical values compare: exact ones exactly, decimals to the digits that count."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rubrics.one_answer import score
from vf.rubrics.outcomes import math_equal

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
    ],
)
def test_decimals_are_compared_to_the_digits_that_count(
    stated: str, answer: Any, value: float
) -> None:
    assert score(MATH, f"\\boxed{{{stated}}}", answer) == value


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
