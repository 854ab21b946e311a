"""Exact match and token F1 against their formulas, written out naively."""

from __future__ import annotations

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rubrics.one_answer import score
from vf.rubrics.outcomes import exact, marked, token_f1
from vf.rubrics.outcomes.text import normalize_answer
from vf.runtime.errors import RubricError

SETTINGS = settings(deadline=None, max_examples=40)
PLACES = st.lists(st.sampled_from(["a", "the", "paris", "Rome", "x-y", "9,5"]), min_size=1).map(
    lambda words: " ".join([*words, "é"])
)
WORDS = st.lists(st.sampled_from(["a", "The", "an", "paris", "Rome", "x-y", "9,5", "!", "é"]))
TEXTS = WORDS.map(" ".join) | st.text(max_size=30)


def naive_normal(text: str) -> list[str]:
    """Lower case, punctuation out, articles out, white space normalised: character by character."""
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


EM = exact(ignore_case=True, ignore_punctuation=True, ignore_articles=True, extract=marked())
F1 = token_f1()
PLAIN = token_f1(allow_longer=True)


@given(WORDS.map(" ".join))
@SETTINGS
def test_normalisation_is_search_r1s(text: str) -> None:
    words = naive_normal(text)
    assert words == normalize_answer(text).split() or not words  # an article alone stays


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
        ("the", "the"),
        ("The A!", "the a"),
        ("?!", ""),
    ],
)
def test_normalisation_by_hand(text: str, normal: str) -> None:
    assert normalize_answer(text) == normal


@given(PLACES, st.lists(PLACES, min_size=1, max_size=3))
@SETTINGS
def test_scores_are_the_best_over_the_golden_answers(text: str, golden: list[str]) -> None:
    words = naive_normal(text)
    same = [naive_normal(one) == words for one in golden]
    assert score(EM, f"Answer: {text}", golden) == float(any(same))
    expected = max(naive_f1(words, naive_normal(one)) for one in golden)
    assert score(PLAIN, f"Answer: {text}", golden) == pytest.approx(expected)


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
        ("Answer: The Hague\nAnswer: Den Haag", 1.0, 1.0, 1.0),
        ("Answer: The Hague\nAnswer: Haag", 0.0, 2 / 3, 2 / 3),
        ("Answer: The Hague\nAnswer: Rome", 0.0, 0.0, 0.0),
        ("Answer: The Hague\nAnswer:", 0.0, 0.0, 0.0),
    ],
)
def test_outcomes_by_hand(reply: str, em: float, f1: float, plain: float) -> None:
    scores = [score(outcome, reply, ["The Hague", "Den Haag"]) for outcome in (EM, F1, PLAIN)]
    assert scores == pytest.approx([em, f1, plain])


NAMES = st.sampled_from(["Paris", "Rome", "New York", "New Delhi", "Den Haag", "Ho Chi Minh City"])


@given(
    st.lists(NAMES, min_size=2, max_size=4, unique=True),
    st.sampled_from([" ", ", ", " or ", "\nAnswer: "]),
)
@SETTINGS
def test_naming_several_never_earns_more_than_the_best_of_them(
    names: list[str], between: str
) -> None:
    """Whichever of the names is the right one, all equally likely."""
    hedged, committed = [], []
    for right in names:
        hedged.append(score(F1, f"Answer: {between.join(names)}", [right]))
        committed.append([score(F1, f"Answer: {name}", [right]) for name in names])
    assert sum(hedged) <= max(map(sum, zip(*committed, strict=True))) + 1e-9


@pytest.mark.parametrize("wrong", [5, None, ["Paris", 5], {"Paris": 1}, [], "?!"])
def test_a_golden_answer_that_is_not_text_is_an_error_that_names_the_outcome(wrong: object) -> None:
    with pytest.raises(RubricError, match=r"'token_f1': the answer of task 'the-task'"):
        score(F1, "Answer: Paris", wrong)
