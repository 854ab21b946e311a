"""Outcomes that compare texts: the exact answer, and multiple choice."""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Callable, Sequence

from vf.rubrics.outcomes.extract import (
    Extract,
    checked_extract,
    every_one,
    marked,
    stated_answers,
    whole_message,
    wrong_answer,
)
from vf.traces.errors import ConfigError
from vf.traces.trace import Trace

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_WRAPPING = " \t\r\n*_`'\"$()[]{}<>"


def exact(
    *,
    ignore_case: bool = False,
    ignore_punctuation: bool = False,
    ignore_spaces: bool = True,
    extract: Extract = whole_message,
) -> Callable[[Trace], float]:
    """1 if the answer equals ``task.answer``, 0 otherwise.

    Both are brought into Unicode's composed form (NFC) and lose surrounding blanks first.
    ``task.answer`` is a text, or a list of texts of which any will do.

    Range: 0 or 1.

    Formula: 1 if every stated answer, normalised, equals a normalised golden one; else 0.

    Source: exact match, as in SQuAD (Rajpurkar et al., arXiv:1606.05250, section 6.1), with the
    normalisation left to you.

    Known ways to game it: none by naming several answers, for each one has to be right. Where
    there are few possible answers a guess pays its chance; where the prompt holds the answer,
    copying does.

    Args:
        ignore_case: Compare case-folded.
        ignore_punctuation: Drop ASCII punctuation.
        ignore_spaces: Count any run of blanks and newlines as one blank.
        extract: Finds the stated answers in the last message; the whole message by default.

    Raises:
        ConfigError: ``extract`` is not an extractor.
        RubricError: (when scoring) ``task.answer`` is not a text or a list of texts, or nothing
            of it is left when it is normalised.
    """
    extract = checked_extract(extract, "exact")

    def normal(text: str) -> str:
        text = unicodedata.normalize("NFC", text).strip()
        if ignore_case:
            text = text.casefold()
        if ignore_punctuation:
            text = text.translate(_PUNCTUATION).strip()
        return " ".join(text.split()) if ignore_spaces else text

    def exact(trace: Trace) -> float:
        answer = trace.task.answer
        accepted = [answer] if isinstance(answer, str) else answer
        if not (
            isinstance(accepted, list | tuple)
            and accepted
            and all(isinstance(text, str) for text in accepted)
        ):
            raise wrong_answer("exact", trace, "a text or a list of texts (or use numeric)")
        golden = {normal(text) for text in accepted}
        if "" in golden:
            raise wrong_answer("exact", trace, "a text of which something is left, normalised")
        return every_one(stated_answers(extract, trace), lambda text: normal(text) in golden)

    return exact


def multiple_choice(
    choices: Sequence[str] = "ABCD", *, extract: Extract | None = None
) -> Callable[[Trace], float]:
    """1 if the answer is the letter in ``task.answer``, 0 otherwise.

    An answer is a choice's label, in any case, alone or before an explanation: ``B``, ``(b)``,
    ``B. Paris``. One that mentions the label of another choice in capitals as a word of its own
    is no answer, so ask for the label alone.

    Range: 0 or 1.

    Formula: 1 if every stated answer begins with the right label and names no other; else 0.

    Source: the accuracy of multiple-choice benchmarks such as MMLU (Hendrycks et al.,
    arXiv:2009.03300).

    Known ways to game it: a guess pays 1 / choices, so a group's rewards spread even where
    nothing was understood; a bias of the tasks towards one label pays more. Shuffle the choices.

    Args:
        choices: The labels.
        extract: Finds the stated answers in the last message; ``marked("Answer:")`` by default.

    Raises:
        ConfigError: There are fewer than two labels, two are the same, or one is not a word.
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


def _pick(text: str, labels: list[str]) -> str | None:
    """Return the label that an answer begins with; None if none, or if it names another."""
    words = _words(text.strip(_WRAPPING))
    by_name = {label.casefold(): label for label in labels}
    first = by_name.get(words[0].casefold()) if words else None
    others = {word for word in words[1:] if word in labels}
    if len(words) <= 4:  # "b or c": in so short an answer, small letters count too
        others |= {by_name[w.casefold()] for w in words[1:] if w.casefold() in by_name}
    return first if others <= {first} else None


def _words(text: str) -> list[str]:
    """Split at whatever is neither letter nor digit."""
    return "".join(c if c.isalnum() else " " for c in text).split()
