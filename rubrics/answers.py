"""Short answers against golden ones: exact match and token F1, as Search-R1 counts them.

A model answers in a fixed form, ``Answer: ...`` in its last message, once and on one line. A
message with two of them has no answer, so naming several is never worth more than deciding.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable

from vf.traces.trace import Trace

_LABEL = "Answer:"
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def stated_answer(text: str) -> str | None:
    """Return what follows the text's only ``Answer:`` in its line; None if none, or several."""
    _, *after = text.split(_LABEL)
    return after[0].partition("\n")[0].strip() or None if len(after) == 1 else None


def normalize_answer(text: str) -> str:
    """Return a text as answers are compared: lower case, no ASCII punctuation, no articles.

    The order is SQuAD's (Rajpurkar et al., arXiv:1606.05250, its evaluation script), which
    Search-R1 took over (Jin et al., arXiv:2503.09516): lower the case, remove ``!"#$...~``, replace
    the words a, an, the by a blank, and join what is left by single blanks. Accents stay.
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, golden: Iterable[str]) -> float:
    """Return 1 if the prediction equals one of the golden answers, both normalised; else 0.

    A prediction of which nothing is left matches nothing.
    """
    normal = normalize_answer(prediction)
    return float(bool(normal) and any(normal == normalize_answer(text) for text in golden))


def token_f1(prediction: str, golden: Iterable[str]) -> float:
    """Return the best token F1 of the prediction with one of the golden answers, in [0, 1].

    Formula: 2PR / (P + R), with the common tokens (a multiset) as a share of the prediction's (P)
    and of the golden answer's tokens (R), after :func:`normalize_answer`; 0 without common ones.
    From SQuAD (arXiv:1606.05250, section 6.1). Known way to game it: name several candidates, which
    :func:`answer_f1` forbids.
    """
    return max((_f1(prediction, text) for text in golden), default=0.0)


def answer_em(trace: Trace) -> float:
    """:func:`exact_match` of the stated answer with ``task.answer``: a text or a list of them."""
    stated = stated_answer(trace.reply)
    return 0.0 if stated is None else exact_match(stated, golden_answers(trace))


def answer_f1(trace: Trace) -> float:
    """:func:`token_f1` of the stated answer, with golden answers that are no shorter than it.

    An answer that holds more tokens than a golden one scores 0 with that one: "Paris or London"
    earns nothing where plain F1 would pay it more than a guess between the two.
    """
    stated = stated_answer(trace.reply)
    if stated is None:
        return 0.0
    length = len(normalize_answer(stated).split())
    long_enough = [t for t in golden_answers(trace) if len(normalize_answer(t).split()) >= length]
    return token_f1(stated, long_enough)


def overlap(trace: Trace) -> float:
    """:func:`token_f1` of the stated answer as it is usually reported: for a metric."""
    stated = stated_answer(trace.reply)
    return 0.0 if stated is None else token_f1(stated, golden_answers(trace))


def answered(trace: Trace) -> float:
    """1 if the last message states one answer in the form that is asked for, else 0."""
    return float(stated_answer(trace.reply) is not None)


def golden_answers(trace: Trace) -> list[str]:
    """Return the golden answers of a trace's task as a list.

    Raises:
        TypeError: ``task.answer`` is neither a text nor a list of texts.
    """
    answer = trace.task.answer
    answers = [answer] if isinstance(answer, str) else answer
    if not isinstance(answers, list | tuple) or not all(isinstance(a, str) for a in answers):
        raise TypeError(f"task.answer must be a text or a list of texts, got {answer!r}")
    return list(answers)


def _f1(prediction: str, golden: str) -> float:
    predicted, wanted = normalize_answer(prediction).split(), normalize_answer(golden).split()
    common = sum((Counter(predicted) & Counter(wanted)).values())
    if not common:
        return 0.0
    precision, recall = common / len(predicted), common / len(wanted)
    return 2 * precision * recall / (precision + recall)
