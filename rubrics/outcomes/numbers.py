"""An outcome that compares numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from fractions import Fraction

from vf.rubrics.outcomes.extract import (
    Extract,
    checked_extract,
    every_one,
    marked,
    stated_answers,
    wrong_answer,
)
from vf.runtime.errors import ConfigError
from vf.traces.trace import Trace

# Commas only where they part thousands. Every part is bounded, so matching takes linear time.
_NUMBER = re.compile(
    r"(?<![\w.])([-+]?)"
    r"(\d{1,3}(?:,\d{3}){1,100}(?!\d)|\d{1,400})?(\.\d{1,400})?"
    r"(?:[eE]([-+]?\d{1,3}))?(?:\s?/\s?(\d{1,400}))?(?!\w)(?![.,/]\d)"
)
_DIGIT = re.compile(r"\d")


def numeric(
    tolerance: float = 1e-6, *, relative: float = 0.0, extract: Extract | None = None
) -> Callable[[Trace], float]:
    """1 if the answer is a number near enough to ``task.answer``, 0 otherwise.

    An answer holds exactly one number: whole, decimal, with commas between thousands, with an
    exponent, or a fraction such as ``3/4``. Words and units around it do not matter; a second
    number makes it no answer. Compared without rounding, however large.

    Range: 0 or 1.

    Formula: 1 if |x − answer| ≤ max(tolerance, relative · |answer|) for every stated answer x;
    else 0.

    Source: Python's ``math.isclose`` (PEP 485), with the tolerance relative to the right answer
    alone, so that a large guess does not widen it.

    Known ways to game it: a tolerance that spans many of the possible answers pays a guess in
    the middle; where answers are small whole numbers, so does the most frequent one.

    Args:
        tolerance: Largest absolute error that is right, in the answer's unit.
        relative: Largest error that is right as a share of the answer, below 1.
        extract: Finds the stated answers in the last message; ``marked("Answer:")`` by default.

    Raises:
        ConfigError: A tolerance is negative or not finite, or ``relative`` is 1 or more (then 0
            would always be right).
        RubricError: (when scoring) ``task.answer`` is neither a finite number nor the text of one.
    """
    if not (math.isfinite(tolerance) and tolerance >= 0):
        raise ConfigError(f"numeric: tolerance must be finite and at least 0, got {tolerance}")
    if not 0 <= relative < 1:
        raise ConfigError(f"numeric: relative must be at least 0 and below 1, got {relative}")
    extract = checked_extract(extract or marked("Answer:"), "numeric")

    def numeric(trace: Trace) -> float:
        answer = _golden(trace)
        margin = max(Fraction(tolerance), Fraction(relative) * abs(answer))

        def near(text: str) -> bool:
            value = only_number(text)
            return value is not None and abs(value - answer) <= margin

        return every_one(stated_answers(extract, trace), near)

    return numeric


def only_number(text: str) -> Fraction | None:
    """Return the text's only number, exactly; None if it has none, several, or a broken one."""
    if len(text) > 2000:
        return None
    text = text.replace("−", "-").replace("\u00a0", " ")
    found = [match for match in _NUMBER.finditer(text) if _DIGIT.search(match[0])]
    if len(found) != 1:
        return None
    match = found[0]
    if _DIGIT.search(text[: match.start()] + " " + text[match.end() :]):
        return None  # digits that belong to no number, such as those of 3.1.4 or x2
    sign, whole, decimals, exponent, below = match.groups()
    if not whole and not decimals:
        return None
    value = Fraction((whole or "0").replace(",", "") + (decimals or ""))
    value *= Fraction(10) ** int(exponent or 0)
    if below is not None:
        if not int(below):
            return None
        value /= int(below)
    return -value if sign == "-" else value


def _golden(trace: Trace) -> Fraction:
    answer = trace.task.answer
    if isinstance(answer, str):
        value = only_number(answer)
        if value is not None:
            return value
    elif isinstance(answer, int) and not isinstance(answer, bool):
        return Fraction(answer)
    elif isinstance(answer, float) and math.isfinite(answer):
        return Fraction(str(answer))  # the number as it is written: 0.1 is a tenth
    raise wrong_answer("numeric", trace, "a finite number or a text that holds one")
