"""Numbers with a tolerance, and mathematical expressions."""

from __future__ import annotations

import asyncio
import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rubrics.one_answer import answered, score
from tests.runtime.worker_functions import dies_of_a_bomb
from vf.rubrics.outcomes import expressions, marked, math_equal, numeric, whole_message
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


MATH = math_equal(timeout=60.0)


@pytest.mark.parametrize(
    ("stated", "answer", "value"),
    [
        ("5", 5, 1.0),
        (r"\frac{1}{2}", "0.5", 1.0),
        ("(x-1)(x+1)", "$x^2-1$", 1.0),
        ("x = 5", "5", 1.0),
        (r"5 \text{ or } 6", "5", 0.0),
        ("5, 6", "5", 0.0),
        (r"\{5, 6\}", "6", 0.0),
        ("6 = 5", "5", 0.0),
        ("5 = 6", "5", 0.0),
        ("x = 6 = 5", "5", 0.0),
        (r"5 \approx 6", "5", 0.0),
        (r"6 \Rightarrow 5", "5", 0.0),
        ("6 → 5", "5", 0.0),
        (r"x \ne 5", r"x \ne 5", 1.0),
        (r"x = 1, y = 2", "x = 1, y = 2", 1.0),
        (r"5 \pm 1", "6", 0.0),
        ("4 < x < 6", "5", 0.0),
        ("", "5", 0.0),
    ],
)
@pytest.mark.usefixtures("in_this_process")
def test_expressions_are_compared_by_what_they_mean(stated: str, answer: Any, value: float) -> None:
    assert score(MATH, f"So \\boxed{{{stated}}}.", answer) == value


# Whatever is no operation on numbers: Math-Verify reads one side and drops the other.
CONNECTORS = (
    r"\lor \land \vee \cup \cap \sqcup \oplus \setminus \mid \parallel \in \ni \subset \prec "
    r"\ll \doteq \propto \asymp \bowtie \vdash \coloneqq \mapsto \therefore \forall \atop \brace "
    r"\dots \vdots \bullet \circ \ast \star \amalg \tag \hline \par \space \| \/ \& \# \cases \leq "
    r"\operatorname{or} \hbox{or} \text{,} \underline{} \hphantom{x} \thicksim \\ \; i.e. "
    ":= =: => -> <=> | || & && _ ~ <> // :: .. ... … ? @ # ` · ∪ ∩ ∨ ∧ ∈ ⊂ ← ↔ ∥ ≝ ∝ "
    "{} () [] (or) [or] {or} ;or 、 ， 或 и \u200b \u00a0 \u2003"
)


@pytest.mark.usefixtures("in_this_process")
def test_of_two_numbers_none_is_dropped() -> None:
    boxes = [
        f"\\boxed{{{one}{gap}{each}{gap}{other}}}"
        for each in CONNECTORS.split(" ")
        for one, other, gap in ((5, 6, ""), (6, 5, " "))
    ]

    async def run() -> list[float]:
        return await asyncio.gather(*(MATH(answered(box, "5")) for box in boxes))

    paid = [box for box, value in zip(boxes, asyncio.run(run()), strict=True) if value]
    assert paid == []


@pytest.mark.parametrize(
    ("stated", "answer", "value"),
    [
        ("- 5", "-5", 1.0),
        ("–5", "-5", 1.0),
        ("—5", "5", 0.0),
        ("6–5", "1", 1.0),
        (r"\geq 5", "5", 0.0),
        ("< 5", "5", 0.0),
        ("5 >", "5", 0.0),
        (r"\neg 5", "5", 0.0),
        ("!5", "5", 0.0),
        (r"x \leq 5", r"x \leq 5", 1.0),
        (r"25 \text{ cm}^2", "25", 1.0),
        ("1,234", "1234", 1.0),
        ("101_2", "101_2", 1.0),
        (r"1\frac12", "1.5", 1.0),
        (r"x \in [0, \infty)", r"[0, \infty)", 1.0),
        (r"(1,2) \cup (3,4)", r"(1,2) \cup (3,4)", 1.0),
        (r"(1,2) \cup (5,6) \lor (3,4)", "(3,4)", 0.0),
        (r"a \lor b", "b", 0.0),
        ("b + a", "a + b", 1.0),
    ],
)
@pytest.mark.usefixtures("in_this_process")
def test_all_of_an_expression_is_read(stated: str, answer: str, value: float) -> None:
    assert score(MATH, f"So \\boxed{{{stated}}}.", answer) == value


@pytest.mark.parametrize(
    "reply",
    [
        r"\boxed{5} or \boxed{6}",
        r"\boxed{6} \boxed{5}",
        r"\boxed{5} \boxed{",
        r"\boxed{\boxed{5} \boxed{6}}",
        "5",
    ],
)
@pytest.mark.usefixtures("in_this_process")
def test_several_boxes_never_pay(reply: str) -> None:
    assert score(MATH, reply, "5") == 0.0


@pytest.mark.usefixtures("in_this_process")
def test_an_expression_cannot_break_out_of_what_was_extracted() -> None:
    outcome = math_equal(timeout=60.0, extract=marked())
    assert score(outcome, "Answer: $5$.", "5") == 1.0
    assert score(outcome, r"Answer: 5} or \boxed{6", "5") == 0.0
    assert score(outcome, "Answer: $5$ $6$", "5") == 0.0


ENDLESS = r"\int_0^1 \sin(x^{x^x})^{99} e^{x^7} dx"


def test_an_expression_that_takes_for_ever_is_wrong_and_holds_up_nobody() -> None:
    outcome = math_equal(timeout=0.3)
    score(MATH, r"\boxed{5}", "5")  # the worker is there

    async def run() -> tuple[float, int]:
        beats, value = 0, asyncio.ensure_future(outcome(answered(rf"\boxed{{{ENDLESS}}}", "5")))
        while not value.done():
            await asyncio.sleep(0)
            beats += 1
        return await value, beats

    value, beats = asyncio.run(run())
    assert value == 0.0
    assert beats >= 20


def test_an_expression_that_ends_the_process_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that takes all memory does: else it would leave its rollout without a reward."""
    monkeypatch.setattr(expressions, "_all_equal", dies_of_a_bomb)
    assert score(MATH, r"\boxed{bomb}", "5") == 0.0
    assert score(MATH, r"\boxed{5}", "5") == 1.0
    with pytest.raises(RubricError, match="its process ended"):  # here it is not the answer's doing
        score(MATH, r"\boxed{5}", "bomb")


@pytest.mark.parametrize(
    ("stated", "message"), [("kill", "exit code -9"), ("raise", "OSError: no space left")]
)
def test_a_failure_of_the_machine_is_an_error_not_a_zero(
    monkeypatch: pytest.MonkeyPatch, stated: str, message: str
) -> None:
    monkeypatch.setattr(expressions, "_all_equal", dies_of_a_bomb)
    with pytest.raises(RubricError, match=message):
        score(MATH, f"\\boxed{{{stated}}}", "5")


def test_an_expression_that_math_verify_cannot_compute_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vf.rubrics.outcomes import math_process

    read = math_process._read

    def overflow(text: str) -> list[Any]:
        if text == "bomb":
            raise RecursionError
        return read(text)

    monkeypatch.setattr(math_process, "_read", overflow)
    assert math_process.all_equal("5", ["bomb"], 6) is False
    with pytest.raises(RecursionError):
        math_process.all_equal("bomb", ["5"], 6)


@pytest.mark.parametrize("answer", [None, True, ["5"], r"\frac{", "", "5} {6"])
@pytest.mark.usefixtures("in_this_process")
def test_a_golden_answer_that_is_no_expression_is_an_error(answer: Any) -> None:
    with pytest.raises(RubricError, match=r"'math_equal'.*the-task"):
        score(MATH, r"\boxed{5}", answer)


@pytest.mark.slow
def test_a_golden_answer_that_takes_for_ever_is_an_error_not_a_zero() -> None:
    with pytest.raises(RubricError, match="longer than"):
        score(math_equal(timeout=1.0), r"\boxed{5}", "9^{9^{9^9}}")
