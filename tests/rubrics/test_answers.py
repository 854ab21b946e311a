"""Exact match and token F1 against their formulas, written out naively."""

from __future__ import annotations

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vf
from vf.rubrics.answers import (
    answer_em,
    answer_f1,
    answered,
    exact_match,
    golden_answers,
    normalize_answer,
    overlap,
    stated_answer,
    token_f1,
)

SETTINGS = settings(deadline=None, max_examples=150)
WORDS = st.lists(st.sampled_from(["a", "The", "an", "paris", "Rome", "x-y", "9,5", "!", "é"]))
TEXTS = WORDS.map(" ".join) | st.text(max_size=30)


def naive_normal(text: str) -> list[str]:
    """Lower case, punctuation out, articles out, white space mended: character by character."""
    kept = [c for c in text.lower() if c not in set(string.punctuation)]
    return [word for word in "".join(kept).split() if word not in ("a", "an", "the")]


def naive_f1(prediction: list[str], golden: list[str]) -> float:
    left, common = list(golden), 0
    for word in prediction:
        if word in left:
            left.remove(word)
            common += 1
    if not common:
        return 0.0
    precision, recall = common / len(prediction), common / len(golden)
    return 2 * precision * recall / (precision + recall)


def trace_of(reply: str, answer: object) -> vf.Trace:
    return vf.Trace(
        environment="e",
        task=vf.Task("t", "p", answer=answer),
        seed=0,
        messages=[vf.Message("user", "p"), vf.Message("assistant", reply)],
        prompt_messages=1,
    )


@given(WORDS.map(" ".join))
@SETTINGS
def test_normalisation_is_search_r1s(text: str) -> None:
    assert normalize_answer(text) == " ".join(naive_normal(text))


@given(TEXTS)
@SETTINGS
def test_normalisation_never_fails_and_keeps_no_punctuation_or_case(text: str) -> None:
    normal = normalize_answer(text)
    assert not set(normal) & set(string.punctuation)
    assert normal == " ".join(normal.split())


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The U.S.A.", "usa"),
        ("66,987,244", "66987244"),
        ("  An   apple\n a day ", "apple day"),
        ("Theodore", "theodore"),
        ("Côte d'Ivoire", "côte divoire"),
        ("the", ""),
    ],
)
def test_normalisation_by_hand(text: str, normal: str) -> None:
    assert normalize_answer(text) == normal


@given(WORDS.map(" ".join), st.lists(WORDS.map(" ".join), max_size=3))
@SETTINGS
def test_scores_are_the_best_over_the_golden_answers(text: str, golden: list[str]) -> None:
    words = naive_normal(text)
    same = [naive_normal(one) == words and bool(words) for one in golden]
    assert exact_match(text, golden) == float(any(same))
    expected = max([naive_f1(words, naive_normal(one)) for one in golden], default=0.0)
    assert token_f1(text, golden) == pytest.approx(expected)


def test_f1_by_hand() -> None:
    assert token_f1("minh city", ["Ho Chi Minh City"]) == pytest.approx(2 * 1 * 0.5 / 1.5)
    assert token_f1("the big big apple", ["big apple"]) == pytest.approx(2 * (2 / 3) / (5 / 3))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Answer: Paris", "Paris"),
        ("I found it.\nAnswer:  New York \nBye.", "New York"),
        ("**Answer:** Paris", "** Paris"),
        ("Answer:", None),
        ("Answer:\nParis", None),
        ("answer: Paris", None),
        ("Paris", None),
        ("", None),
        ("Answer: Paris\nAnswer: London", None),
        ("Answer: Paris Answer: Paris", None),
    ],
)
def test_an_answer_is_stated_once_and_on_one_line(text: str, answer: str | None) -> None:
    assert stated_answer(text) == answer
    assert answered(trace_of(text, "x")) == float(answer is not None)


@pytest.mark.parametrize(
    ("reply", "em", "f1", "plain"),
    [
        ("Answer: the Hague.", 1.0, 1.0, 1.0),
        ("Answer: Hague city", 0.0, 0.0, 2 / 3),
        ("Answer: Paris or The Hague", 0.0, 0.0, 0.5),
        ("Answer: Haag", 0.0, 2 / 3, 2 / 3),
        ("Answer: Den Paris", 0.0, 0.5, 0.5),
        ("Answer: Rome", 0.0, 0.0, 0.0),
        ("The Hague", 0.0, 0.0, 0.0),
    ],
)
def test_outcomes_by_hand(reply: str, em: float, f1: float, plain: float) -> None:
    trace = trace_of(reply, ["The Hague", "Den Haag"])
    scores = (answer_em(trace), answer_f1(trace), overlap(trace))
    assert scores == pytest.approx((em, f1, plain))


NAMES = st.sampled_from(["Paris", "Rome", "New York", "New Delhi", "Den Haag", "Ho Chi Minh City"])


@given(st.lists(NAMES, min_size=2, max_size=4, unique=True), st.sampled_from([" ", ", ", " or "]))
@SETTINGS
def test_naming_several_never_earns_more_than_the_best_of_them(
    names: list[str], between: str
) -> None:
    """Whichever of the names is the right one, all equally likely."""
    hedged, committed = [], []
    for right in names:
        hedged.append(answer_f1(trace_of(f"Answer: {between.join(names)}", [right])))
        committed.append([answer_f1(trace_of(f"Answer: {name}", [right])) for name in names])
    assert sum(hedged) <= max(map(sum, zip(*committed, strict=True))) + 1e-9


def test_a_single_text_is_a_golden_answer_and_anything_else_an_error() -> None:
    assert golden_answers(trace_of("", "Paris")) == ["Paris"]
    assert golden_answers(trace_of("", ("Paris", "Lutetia"))) == ["Paris", "Lutetia"]
    for wrong in (5, None, ["Paris", 5], {"Paris": 1}):
        with pytest.raises(TypeError, match=r"task\.answer must be"):
            golden_answers(trace_of("", wrong))
