"""Exact answers, multiple choice, and where an answer is found."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import vf
from tests.rubrics.one_answer import answered, score
from vf.rubrics.outcomes import boxed, exact, json_field, json_text, marked, multiple_choice
from vf.runtime.errors import ConfigError, RubricError


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Answer: 5", ["5"]),
        ("**Answer:** 5", ["5"]),
        ("**Answer: 5**\nSo it is.", ["5"]),
        ("Answer: 5\nAnswer: 6", ["5", "6"]),
        ("Answer: 5 Answer: 6", ["5", "6"]),
        ("Answer:\n5", [""]),
        ("answer: 5", []),
        ("", []),
    ],
)
def test_a_marker_states_the_rest_of_its_line(text: str, found: list[str]) -> None:
    assert marked("Answer:")(text) == found


def test_a_marker_may_be_in_any_case() -> None:
    assert marked(ignore_case=True)("İ ANSWER: Ada\nanswer: Bo") == ["Ada", "Bo"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"so \boxed{5}", ["5"]),
        (r"\boxed {\frac{1}{2}}", [r"\frac{1}{2}"]),
        (r"\boxed{\{1, 2\}}", [r"\{1, 2\}"]),
        (r"\boxed{5} or \boxed{6}", ["5", "6"]),
        (r"\boxed{5} or \boxed{6", ["5", ""]),
        (r"\boxed5", [""]),
        ("5", []),
    ],
)
def test_boxes_are_read_to_their_own_closing_brace(text: str, found: list[str]) -> None:
    assert boxed(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"answer": "Ada"}', ["Ada"]),
        ('Here:\n```json\n{"answer": [1, 2]}\n```\n', ["[1, 2]"]),
        ('{"answer": "Ada", "answer": "Bo"}', [""]),
        ('{"reply": "Ada"}', [""]),
        ('```\n{"answer": "Ada"}\n```\n```\n{"answer": "Bo"}\n```', ["Ada", "Bo"]),
        ('```json\n{"answer": "Ada"}', [""]),
        ('Well, {"answer": "Ada"}', [""]),
        ("[" * 100_000, [""]),
    ],
)
def test_a_field_of_json_is_read_if_it_is_the_only_one(text: str, found: list[str]) -> None:
    assert json_field("answer")(text) == found


@given(st.text(alphabet="ab\\boxed{}` \n*Answer:", max_size=200))
def test_extractors_take_any_text(text: str) -> None:
    for extract in (marked("Answer:"), boxed, json_text, json_field()):
        assert all(isinstance(found, str) for found in extract(text))


def test_exact_compares_as_it_is_set_to() -> None:
    assert score(exact(), " The  cat\n", "The cat") == 1.0
    assert score(exact(ignore_spaces=False), "The  cat", "The cat") == 0.0
    assert score(exact(), "the cat", "The cat") == 0.0
    assert score(exact(ignore_case=True), "STRASSE", "Straße") == 1.0
    assert score(exact(), "The cat!", "The cat") == 0.0
    assert score(exact(ignore_punctuation=True), "The cat!", "The cat") == 1.0
    assert score(exact(), "cafe\u0301", "café") == 1.0
    assert score(exact(), "London", ["London", "Greater London"]) == 1.0
    assert score(exact(), "", ["London"]) == 0.0


def test_naming_several_answers_never_pays() -> None:
    outcome = exact(extract=marked())
    assert score(outcome, "Answer: Paris", "Paris") == 1.0
    assert score(outcome, "Answer: Paris\nAnswer: Paris", "Paris") == 1.0
    for hedge in (
        "Answer: Paris\nAnswer: Rome",
        "Answer: Rome Answer: Paris",
        "Answer: Paris/Rome",
    ):
        assert score(outcome, hedge, "Paris") == 0.0
    assert score(outcome, "Answer: Paris\n" * 1000, "Paris") == 0.0  # nobody needs so many


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        ("Answer: B", 1.0),
        ("Answer: (b)", 1.0),
        ("Answer: **B**", 1.0),
        ("Answer: B. The cat sat on a mat", 1.0),
        ("Answer: Option B.", 1.0),
        ("Answer: option (B)", 1.0),
        ("Answer: letter b", 1.0),
        ("Answer: The correct answer is B", 1.0),
        (r"Answer: \mathbf{B}", 1.0),
        ("**Answer: B**", 1.0),
        ("Answer: B) 12", 1.0),
        ("Answer: So my final answer is B", 1.0),
        ("Answer: I choose B", 1.0),
        ("Answer: B. A cat sat", 1.0),
        ("Answer: __B__", 1.0),
        ("Answer: B, A", 0.0),
        ("Answer: B. A is wrong", 0.0),
        ("Answer: B A possibly", 0.0),
        ("Answer: Option A or B", 0.0),
        ("Answer: The answer is not B", 0.0),
        ("Answer: options B and C", 0.0),
        ("Answer: C", 0.0),
        ("Answer: B or C", 0.0),
        ("Answer: b, c", 0.0),
        ("Answer: B and C", 0.0),
        ("Answer: BC", 0.0),
        ("Answer: ABCD", 0.0),
        ("Answer: A, B, C, D", 0.0),
        ("Answer: B\nAnswer: C", 0.0),
        ("Answer: the second", 0.0),
        ("Answer: Because", 0.0),
        ("Answer: B: a city", 1.0),
        ("Answer: B, a maybe", 0.0),
        ("Answer: B. It does not move", 1.0),
        ("Answer: B is wrong", 0.0),
        ("Answer: B isn't right", 0.0),
        ("Answer: B isn’t the one", 0.0),
        ("Answer: B cannot be right", 0.0),
        ("Answer: B would be a mistake", 0.0),
        ("Answer: B. On reflection it should be option c instead", 0.0),
        ("Answer:", 0.0),
        ("B", 0.0),
        ("", 0.0),
    ],
)
def test_multiple_choice_takes_one_label(reply: str, value: float) -> None:
    assert score(multiple_choice("ABCD"), reply, "B") == value


@pytest.mark.parametrize(
    ("outcome", "answer", "hint"),
    [
        (exact(), 5, "use numeric"),
        (exact(), [], "a text or a list of texts"),
        (exact(), None, "a text or a list of texts"),
        (exact(ignore_punctuation=True), "?!", "something is left"),
        (multiple_choice("ABCD"), 1, "one of the choices 'A', 'B', 'C', 'D'"),
        (multiple_choice("ABCD"), "b", "one of the choices"),
    ],
)
def test_an_answer_of_the_wrong_type_names_the_function_and_the_fix(
    outcome: Any, answer: Any, hint: str
) -> None:
    with pytest.raises(RubricError, match="the-task") as error:
        score(outcome, "anything", answer)
    assert outcome.__name__ in str(error.value)
    assert hint in str(error.value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: exact(extract="Answer:"),  # type: ignore[arg-type]
        lambda: exact(extract=marked),  # type: ignore[arg-type]
        lambda: marked(" "),
        lambda: json_field(""),
        lambda: multiple_choice("A"),
        lambda: multiple_choice("AAB"),
        lambda: multiple_choice(["A", "B or C"]),
    ],
)
def test_wrong_settings_are_refused_at_load_time(make: Any) -> None:
    with pytest.raises(ConfigError, match=r"exact|marked|json_field|multiple_choice"):
        make()


def test_outcomes_serve_a_rubric_under_their_own_name() -> None:
    rubric = vf.Rubric(outcome=exact(), metrics=[multiple_choice("AB", extract=marked("Pick:"))])
    scored = asyncio.run(rubric.score(answered("A", "A")))
    assert (scored.reward, scored.metrics) == (1.0, {"multiple_choice": 0.0})
