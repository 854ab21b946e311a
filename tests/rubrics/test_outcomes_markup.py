"""Markup around an answer: every outcome reads through it, and nothing hides in it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rubrics.one_answer import score
from vf.rubrics.outcomes import (
    exact,
    math_equal,
    multiple_choice,
    numeric,
    token_f1,
    whole_message,
)
from vf.rubrics.outcomes.extract import boxed
from vf.rubrics.outcomes.markup import plain, unwrapped

pytestmark = pytest.mark.usefixtures("in_this_process")

LOOKS = [
    "%s",
    "**%s**",
    "*%s*",
    "***%s***",
    "__%s__",
    "_%s_",
    "`%s`",
    "```\n%s\n```",
    "```text\n%s\n```",
    "<b>%s</b>",
    "<strong>%s</strong>",
    "$%s$",
    "$$%s$$",
    r"\(%s\)",
    r"\[%s\]",
    r"\boxed{%s}",
    r"\boxed {%s}",
    r"\fbox{%s}",
    r"\text{%s}",
    r"\textbf{%s}",
    r"\textit{%s}",
    r"\mathrm{%s}",
    r"\mathbf{%s}",
    r"\mathsf{%s}",
    r"\mbox{%s}",
    r"\emph{%s}",
    r"\underline{%s}",
    r"\boldsymbol{%s}",
    r"\operatorname{%s}",
    r"\textcolor{red}{%s}",
    r"\displaystyle %s",
    r"{\bf %s}",
    r"$\boxed{\text{%s}}$",
    r"\[\boxed{\mathbf{%s}}\]",
    r"**$%s$**",
    "`**%s**`",
    r"\,%s\;",
    "\u00a0%s\u2009",
]

WHOLE: list[tuple[Any, str, Any, str]] = [
    (exact(), "New York", "New York", "Boston"),
    (exact(ignore_case=True), "5%", "5%", "6%"),
    (token_f1(extract=whole_message), "New York", "New York", "Boston"),
    (numeric(extract=whole_message), "-5", -5, "-6"),
    (multiple_choice(extract=whole_message), "B", "B", "C"),
    (multiple_choice(extract=whole_message), "(b)", "B", "(c)"),
    (math_equal(timeout=60.0, extract=whole_message), "-5", "-5", "-6"),
]


@pytest.mark.parametrize("look", LOOKS)
def test_every_outcome_reads_through_markup(look: str) -> None:
    for outcome, right, answer, wrong in WHOLE:
        assert score(outcome, look % right, answer) == 1.0, outcome.__name__
        assert score(outcome, look % wrong, answer) == 0.0, outcome.__name__
        if isinstance(answer, str) and answer != "B":
            assert score(outcome, right, look % answer) == 1.0, outcome.__name__


NUMBERS = [
    (r"\$18.90", "18.90"),
    ("$18.90", "18.90"),
    (r"$\$18.90$", "18.90"),
    (r"-\$18.90", "-18.90"),
    ("€18.90", "18.90"),
    ("18.90 €", "18.90"),
    ("£18.90", "18.90"),
    (r"\pounds 18.90", "18.90"),
    ("18.90 USD", "18.90"),
    ("18.90 dollars", "18.90"),
    (r"18.90\text{ dollars}", "18.90"),
    (r"\$1{,}234.50", "1234.50"),
    ("1,234,567", "1234567"),
    ("1{,}234{,}567", "1234567"),
    (r"1\,234\,567", "1234567"),
    (r"1,\!234,\!567", "1234567"),
    ("1\u202f234", "1234"),
    ("1\u00a0234", "1234"),
    ("1'234", "1234"),
    (r"\frac{3}{4}", "0.75"),
    (r"-\dfrac{3}{4}", "-0.75"),
    (r"0.\overline{3}", "1/3"),
    (r"0.\bar{3}", "1/3"),
    (r"0.1\overline{6}", "1/6"),
    (r"-2.\overline{09}", "-23/11"),
    (r"3 \times 10^{5}", "300000"),
    (r"3 \cdot 10^{-2}", "0.03"),
    (r"25 \text{ cm}^2", "25"),
    (r"45^\circ", "45"),
    ("45°", "45"),
    ("3⁄4", "0.75"),
    ("3∕4", "0.75"),
    ("2 × 10³", "2000"),
    ("2×10⁻³", "0.002"),
    ("1.234.567", "1234567"),
    ("1.5x10^3", "1500"),
    ("0.(3)", "1/3"),
    ("0.333...", "1/3"),
]


@pytest.mark.parametrize(("stated", "answer"), NUMBERS)
def test_numbers_are_read_as_they_are_typeset(stated: str, answer: str) -> None:
    for make in (numeric, math_equal):
        outcome = make(extract=whole_message)
        assert score(outcome, stated, answer) == 1.0, make.__name__
        assert score(outcome, answer, stated) == 1.0, make.__name__
        assert score(outcome, stated, "7") == 0.0, make.__name__


@pytest.mark.parametrize(
    "reply",
    [
        r"\textbf{(B)}\ 12",
        r"\text{(B) } 12",
        r"(\text{B})",
        r"\mathbf{B.}",
        r"\boxed{B. Paris}",
        "**B**: Paris",
        "B) Paris",
    ],
)
def test_a_choice_is_found_in_markup_around_a_part(reply: str) -> None:
    assert score(multiple_choice(extract=whole_message), reply, "B") == 1.0
    assert score(multiple_choice(extract=whole_message), reply, "C") == 0.0


@pytest.mark.parametrize(
    "hedge",
    [
        r"\textbf{B} or \textbf{C}",
        r"\boxed{B}\boxed{C}",
        r"\text{B}\text{C}",
        r"$B$ $C$",
        r"\color{white}{C} B",
        r"\text{B or C}",
        "B or the last one",
        "**B** and maybe the fourth",
    ],
)
def test_no_second_choice_hides_in_markup(hedge: str) -> None:
    for answer in "BC":
        assert score(multiple_choice(extract=whole_message), hedge, answer) == 0.0


@pytest.mark.parametrize("end", ["\\boxed", "\\boxed ", "\\boxed{", "\\boxed{7"])
def test_a_box_that_is_never_closed_is_an_empty_answer(end: str) -> None:
    assert boxed(f"\\boxed{{5}} or {end}") == ["5", ""]


def test_what_only_looks_like_markup_stays() -> None:
    for text in ("**kwargs", "a * b * c", "__init__", "$HOME", "$5 and $6", "{'a': 1}", "x_1"):
        assert plain(text) == text
    assert plain(r"\text{5}\text{6}") == "5 6"
    assert unwrapped(r"\(5\) or \(6\)") == r"\(5\) or \(6\)"
    assert unwrapped("**5** or **6**") == "**5** or **6**"


@given(st.text(alphabet="ab5{}\\()[]$*`<b>/_, .text", max_size=200))
def test_any_text_is_read(text: str) -> None:
    assert isinstance(plain(text), str)


@pytest.mark.parametrize("text", ["{", "\\text{", "$", "*", "`", "1,", "\\(", "0.", "<b>", "\\bf "])
def test_hostile_markup_is_read_in_linear_time(text: str) -> None:
    """In exponential time the test would never end."""
    assert score(exact(), text * (20_000 // len(text)), "a") == 0.0
