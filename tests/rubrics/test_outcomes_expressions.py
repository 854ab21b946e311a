"""Mathematical expressions are compared by their value, and none takes for ever."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.rubrics.one_answer import answered, score
from tests.runtime.worker_functions import dies_of_a_bomb
from vf.rubrics.outcomes import expressions, marked, math_equal
from vf.runtime.errors import RubricError

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
        # All of it is read:
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


def test_a_golden_answer_that_takes_for_ever_is_an_error_not_a_zero() -> None:
    # A longer time is spent again and again, by a process that lets all others go first.
    with pytest.raises(RubricError, match="longer than"):
        score(math_equal(timeout=0.05), r"\boxed{5}", "9^{9^{9^9}}")
