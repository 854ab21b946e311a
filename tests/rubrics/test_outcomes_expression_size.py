"""Which expressions are seen to be too large to compute, before anything computes them."""

from __future__ import annotations

import pytest

from tests.rubrics.one_answer import score
from vf.rubrics.outcomes import math_equal
from vf.rubrics.outcomes.expression_size import is_too_large

pytestmark = pytest.mark.usefixtures("in_this_process")

TOO_LARGE = [
    r"9^{9^{9^9}}",
    "9**9**9",
    r"2^{3^{4^{5^6}}}",
    r"e^{e^{e^{e^{e^{e}}}}}",
    r"10^{10^{8}}",
    r"3^{10^8}",
    r"5 \times 7^{123456789}",
    "1" * 400 + "^{" + "7" * 80 + "}",
    "(10^8)!",
    "((99!)!)!",
    r"\left(3^{10}\right)!",
    r"\binom{10^9}{5 \cdot 10^8}",
    r"\sum_{k=1}^{10^{9}} \frac{1}{k^k}",
    r"\frac{1}{9^{9^{9}}}",
    r"\sin(10^{10^{10}})",
    r"\frac" * 5_000,
    r"\binom" * 5_000,
    "(x+1)^{99999}",
    "(x^2+y^2+z^2+w^2+1)^{60}",
    r"(1+\sqrt{2}+\sqrt{3}+\sqrt{5})^{400}",
    "+".join(rf"\sqrt[{k}]{{{k + 1}}}" for k in range(2, 30)),
    "(" * 100 + "x" + ")" * 100,
    "x^{" * 60 + "x" + "}" * 60,
    "x" + "^x" * 60,
    "[0, 9^{9^{9}})",
    "] 9^{9^{9}}",
]
HONEST = [
    r"2^{100}",
    "2^{1000000}",
    "20!",
    "2024!",
    "99!!",
    r"10^{50}",
    r"\binom{50}{25}",
    r"\binom{2024}{1012}",
    r"7^{2024} \mod 100",
    r"2^{2^{10}}",
    "2^{2^{2^2}}",
    r"e^{e^{e^x}}",
    r"x^{x^x}",
    r"x^{123456}",
    r"e^{-50000 / (8.314 \cdot 298)}",
    r"e^{-\frac{50000}{8.314 \cdot 298}}",
    r"(1+\frac{0.05}{365})^{2920}",
    r"(1+\sqrt2)^{100}",
    r"(a+b+c+d)^{20}",
    r"\sum_{k=1}^{100} k^2",
    r"\int_0^\infty e^{-x^2} dx",
    r"\begin{pmatrix}1&2\\3&4\end{pmatrix}^{10}",
    r"\sqrt{1+\sqrt{1+\sqrt{1+\sqrt{2}}}}",
    r"6.02 \times 10^{23}",
    ", ".join(map(str, range(1, 200))),
    "1" * 900,
    "[0, 1)",
    "5^",
    "^5",
    "!",
    "...",
    "٣.٥^{٢}",
    r"\frac{1",
    r"\frac{1}{1+" * 12 + "x" + "}" * 12,
    "",
]


@pytest.mark.parametrize("expression", TOO_LARGE)
def test_what_would_cost_too_much_shows_it(expression: str) -> None:
    assert is_too_large(expression)


@pytest.mark.parametrize("expression", HONEST)
def test_honest_expressions_do_not(expression: str) -> None:
    assert not is_too_large(expression)


def test_a_golden_answer_may_be_large() -> None:
    """It is its own text; whatever else is equal to it cannot be computed."""
    math = math_equal(timeout=60.0)
    assert score(math, r"\boxed{x^{10^{7}}}", "x^{10^{7}}") == 1.0
    assert score(math, r"\boxed{y^{10^{7}}}", "x^{10^{7}}") == 0.0
