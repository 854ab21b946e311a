"""Outcomes that compare texts: the exact answer, token F1, and multiple choice."""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise

from vf.rubrics.outcomes.extract import (
    Extract,
    checked_extract,
    every_one,
    marked,
    stated_answers,
    whole_message,
    wrong_answer,
)
from vf.rubrics.outcomes.markup import plain
from vf.runtime.errors import ConfigError
from vf.traces.trace import Trace

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ANOTHER = {"and", "or", "else", "otherwise", "alternatively"}  # "B or the last one"
# What may come before a label: "Option B", "the correct answer is B".
_BEFORE_LABEL = {"option", "choice", "letter", "answer", "the", "is"}
_NO_NOUNS = _ANOTHER | {"maybe", "perhaps", "possibly", "probably", "also", "too", "is", "as"}
_NAMES = {"option", "choice", "letter"}  # before a label, wherever they are
_BEFORE_LABEL |= {"best", "correct", "final", "right", "my", "it", "i", "choose", "pick", "select"}
_BEFORE_LABEL |= {"so", "thus", "therefore", "hence"}
# What denies an answer behind its label and a verb: "B is wrong", "B cannot be right".
_VERBS = {"is", "isn", "was", "wasn", "are", "would", "wouldn", "can", "cannot", "could", "couldn"}
_DENIALS = {"not", "t", "cannot", "never", "wrong", "incorrect", "false", "mistake", "unlikely"}
_ARTICLES = re.compile(r"\b(a|an|the)\b", re.IGNORECASE)


def exact(
    *,
    ignore_case: bool = False,
    ignore_punctuation: bool = False,
    ignore_articles: bool = False,
    ignore_spaces: bool = True,
    extract: Extract = whole_message,
) -> Callable[[Trace], float]:
    """1 if the answer equals ``task.answer``, 0 otherwise.

    Both are normalised first, see :func:`normalize_answer`. ``task.answer`` is a text, or a list of
    accepted texts.

    Range: 0 or 1.

    Formula: 1 if every stated answer, normalised, equals a normalised golden one; else 0.

    Source: exact match, as in SQuAD (Rajpurkar et al., arXiv:1606.05250, section 6.1) and
    Search-R1 (Jin et al., arXiv:2503.09516), who ignore case, punctuation and articles.

    Known ways to game it: none by naming several answers, because each one has to be right. If
        there are few possible answers, guessing pays; if the prompt contains the answer, copying
        does.

    Args:
        ignore_case: Compare case-folded.
        ignore_punctuation: Drop ASCII punctuation.
        ignore_articles: Drop the words a, an and the, unless nothing else is left.
        ignore_spaces: Count any run of spaces and newlines as one space.
        extract: Finds the stated answers in the last message; the whole message by default.

    Raises:
        ConfigError: ``extract`` is not an extractor.
        RubricError: (when scoring) ``task.answer`` is not a text or a list of texts, or nothing
            of it is left when it is normalised.
    """
    extract = checked_extract(extract, "exact")

    def normal(text: str) -> str:
        return normalize_answer(
            text,
            ignore_case=ignore_case,
            ignore_punctuation=ignore_punctuation,
            ignore_articles=ignore_articles,
            ignore_spaces=ignore_spaces,
        )

    def exact(trace: Trace) -> float:
        golden = _golden("exact", trace, normal)
        return every_one(stated_answers(extract, trace), lambda text: normal(text) in golden)

    return exact


def token_f1(
    *, allow_longer: bool = False, extract: Extract | None = None
) -> Callable[[Trace], float]:
    """Word overlap between the answer and ``task.answer``.

    Both are normalised first, see :func:`normalize_answer`. ``task.answer`` is a text, or a list
    of texts of which the most similar counts.

    Range: [0, 1].

    Formula: 2PR / (P + R), with the common words (a multiset) as a share of the answer's (P) and
    of the golden answer's (R); 0 without common ones. Unless ``allow_longer``, 0 with a golden
    answer of fewer words than the answer has. Of several stated answers the worst counts.

    Source: SQuAD (Rajpurkar et al., arXiv:1606.05250, section 6.1). Its own F1 rewards "Paris or
        London" more than a guess between the two; that is ``allow_longer``, for a metric.

    Known ways to game it: with ``allow_longer``, naming several candidates. Without it, frequent
        words ("city", "river") that fill long golden answers.

    Args:
        allow_longer: Whether an answer may have more words than the golden one.
        extract: Finds the stated answers in the last message; ``marked("Answer:")`` by default.

    Raises:
        ConfigError: ``extract`` is not an extractor.
        RubricError: (when scoring) ``task.answer`` is not a text or a list of texts, or nothing
            of it is left when it is normalised.
    """
    extract = checked_extract(extract or marked("Answer:"), "token_f1")

    def token_f1(trace: Trace) -> float:
        golden = [text.split() for text in _golden("token_f1", trace, normalize_answer)]

        def best(text: str) -> float:
            words = normalize_answer(text).split()
            fair = [right for right in golden if allow_longer or len(words) <= len(right)]
            return max((_f1(words, right) for right in fair), default=0.0)

        return min(map(best, stated_answers(extract, trace)), default=0.0)

    return token_f1


def normalize_answer(
    text: str,
    *,
    ignore_case: bool = True,
    ignore_punctuation: bool = True,
    ignore_articles: bool = True,
    ignore_spaces: bool = True,
) -> str:
    """Return a text as answers are compared: composed (NFC), without markup and outer whitespace.

    By default as SQuAD's evaluation script does it (which lowers the case where this folds it):
    case, then ASCII punctuation, then the words a, an, the, then spaces. Accents stay. An article
    that is all there is stays too.
    """
    text = unicodedata.normalize("NFC", text).strip()
    text = plain(text) or text
    if ignore_case:
        text = text.casefold()
    if ignore_punctuation:
        text = text.translate(_PUNCTUATION).strip()
    if ignore_articles:
        text = _ARTICLES.sub(" ", text).strip() or text
    return " ".join(text.split()) if ignore_spaces else text


def multiple_choice(
    choices: Sequence[str] = "ABCD", *, extract: Extract | None = None
) -> Callable[[Trace], float]:
    """1 if the answer is the letter in ``task.answer``, 0 otherwise.

    An answer is a choice's label, in any case, alone, behind words such as "option" or "the answer
    is", or before an explanation: ``B``, ``(b)``, ``Option B``, ``B. Paris``. One that mentions the
    label of another choice in capitals as a word of its own does not count, so ask for the label
    alone.

    Range: 0 or 1.

    Formula: 1 if every stated answer begins with the right label and names no other; else 0.

    Source: the accuracy of multiple-choice benchmarks such as MMLU (Hendrycks et al.,
    arXiv:2009.03300).

    Known ways to game it: a guess pays 1 / choices, so a group's rewards spread even if nothing was
        understood; a bias of the tasks towards one label pays more. Shuffle the choices.

    Args:
        choices: The labels.
        extract: Finds the stated answers in the last message; ``marked("Answer:")`` by default.

    Raises:
        ConfigError: If there are fewer than two labels, two are the same, or one is not a word.
        RubricError: (when scoring) ``task.answer`` is not one of the labels.
    """
    labels = list(choices)
    if (
        len(labels) < 2
        or not all(isinstance(label, str) and label.isalnum() for label in labels)
        or len({label.casefold() for label in labels}) != len(labels)
    ):
        raise ConfigError(
            "multiple_choice: choices must be two or more different labels of letters and "
            f"digits, such as 'ABCD', got {choices!r}"
        )
    extract = checked_extract(extract or marked("Answer:"), "multiple_choice")
    listed = ", ".join(map(repr, labels))

    def multiple_choice(trace: Trace) -> float:
        answer = trace.task.answer
        if answer not in labels:
            raise wrong_answer("multiple_choice", trace, f"one of the choices {listed}")
        return every_one(stated_answers(extract, trace), lambda text: _pick(text, labels) == answer)

    return multiple_choice


def _golden(outcome: str, trace: Trace, normal: Callable[[str], str]) -> set[str]:
    """Return the accepted answers, normalised."""
    answer = trace.task.answer
    accepted = [answer] if isinstance(answer, str) else answer
    if not (
        isinstance(accepted, list | tuple)
        and accepted
        and all(isinstance(text, str) for text in accepted)
    ):
        raise wrong_answer(outcome, trace, "a text or a list of texts (or use numeric)")
    golden = {normal(text) for text in accepted}
    if "" in golden:
        raise wrong_answer(outcome, trace, "a text of which something is left, normalised")
    return golden


def _f1(words: Sequence[str], golden: Sequence[str]) -> float:
    common = sum((Counter(words) & Counter(golden)).values())
    if not common:
        return 0.0
    precision, recall = common / len(words), common / len(golden)
    return 2 * precision * recall / (precision + recall)


def _pick(text: str, labels: list[str]) -> str | None:
    """Return the label that an answer begins with; None if none, or if it names another."""
    text = unicodedata.normalize("NFKC", plain(text))
    words = "".join(c if c.isalnum() else " " for c in text).split()
    by_name = {label.casefold(): label for label in labels}
    while words and (word := words[0].casefold()) in _BEFORE_LABEL and word not in by_name:
        del words[0]
    first = by_name.get(words[0].casefold()) if words else None
    if words[1:] and words[1].casefold() in _ANOTHER:
        return None
    rest = _without_article(words[1:])
    if rest and rest[0].casefold() in _VERBS and not _DENIALS.isdisjoint(map(str.casefold, rest)):
        return None
    others = {word for word in rest if word in labels}
    if len(words) <= 4:  # "b or c": in so short an answer, small letters count too
        others |= {by_name[w.casefold()] for w in rest if w.casefold() in by_name}
    named = (b.casefold() for a, b in pairwise(words) if a.casefold() in _NAMES)
    others |= {by_name[name] for name in named if name in by_name}
    return first if others <= {first} else None


def _without_article(words: list[str]) -> list[str]:
    """Return the words without an "a", or an "A" before them, that is the article of a word."""
    articles = {
        at
        for at, (a, b) in enumerate(pairwise(words))
        if (a == "a" or (a == "A" and at == 0)) and _is_noun(b)
    }
    return [word for at, word in enumerate(words) if at not in articles]


def _is_noun(word: str) -> bool:
    return (
        len(word) > 1
        and word.isalpha()
        and not word.endswith("ly")
        and word.casefold() not in _NO_NOUNS | _VERBS
    )
