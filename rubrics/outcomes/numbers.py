"""An outcome that compares numbers."""

from __future__ import annotations

import math
import re
import unicodedata
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
from vf.rubrics.outcomes.hedges import hedges
from vf.rubrics.outcomes.markup import mixed, plain, repeating
from vf.runtime.errors import ConfigError
from vf.traces.trace import Trace

# Commas only where they part thousands. Every part is bounded, so matching takes linear time.
_NUMBER = re.compile(
    r"(?<![\w.])(\d{1,3}(?:,\d{3}){1,100}(?!\d)|\d{1,400})?(\.\d{1,400})?"
    r"(?:[eE]([-+]?\d{1,3}))?(?:\s?/\s?(\d{1,400}))?(?!\w)(?![.,/]\d)"
)
_DIGIT = re.compile(r"\d")
# LaTeX's numbers as the pattern above reads them, and what makes no other number of one.
_FRACTION = re.compile(r"\\[dtc]?frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}")
_POWER_OF_TEN = re.compile(
    r"(?<=\d)\s*(?:\\times|\\cdot|[×·⋅*xX])\s*10\s*(?:\^|\*\*)\s*(?:\{\s*(-?\d+)\s*\}|(-?\d+))"
)
_RAISED = re.compile(r"(?<=[×·⋅*]10)[⁻⁰¹²³⁴-⁹]+|(?<=[×·⋅*] 10)[⁻⁰¹²³⁴-⁹]+")
_DEGREES = re.compile(r"\^\s*(?:\\circ|\{\s*\\circ\s*\})")
_UNIT_POWER = re.compile(
    r"(?<=\d)\s*((?:(?:[kc]?m|mi|ft)\s?/\s?(?:s|h|min)|[kcmd]?m|in|ft|yd|mi|feet|inch(?:es)?|units?|met(?:er|re)s?))"
    r"\s*(?:\^\s*(?:[23]|\{[23]\})|[²³])(?!\w)"
)
# Units that are written without a space, and that mean nothing else, as k, m and x do.
_GLUED = re.compile(
    r"(?<=\d)(?=(?:[km]?g|[cmk]m|m[lL]|k[WJ]|[kM]?Hz|km/h|mph|hrs?|mins?|secs?|lbs?|oz|ft|mol|"
    r"USD|EUR|GBP)(?![a-zA-Z0-9]))"
)
_DASHES = (
    "−˗⁻₋➖"  # beside those that Unicode calls dashes: minus, modifier, raised, lowered, emoji
)
_OPENING = "([{*_`'\"\\"  # what may stand between a sign and its number, beside spaces and currency
_SIGN_WORD = re.compile(r"\b(minus|negative|plus|positive)$", re.IGNORECASE)
# What makes another number of the one behind it, or denies it: a function, a relation, a "not".
_CHANGES_NEXT = re.compile(
    r"[√∛∜±∓≠≤≥≮≯<^|/×÷·]$|[!<>]=$|\\(?:pm|mp|neq?|leq?|geq?|lt|gt|not)$|(?<![-=>])>$"
    r"|\b(?:sqrt|root|half|log|ln|exp|sin|cos|tan)(?:\s+of)?$|\b(?:twice|double|not)$"
    r"|\b(?:square|cube|reciprocal|inverse|opposite|negative|third|quarter|fifth|multiple|power"
    r"|logarithm|factorial)s?\s+of$|n['’]t$|\b(?:cannot(?:\s+be)?|never|neither|nor|but|except"
    r"|unless|than|nearly|almost|just\s+(?:under|over|below|above))$",
    re.IGNORECASE,
)
_TAG = re.compile(r"<[^<>]*>$")
# What makes another number, or a range, of the one before it, or denies it.
_CHANGES_LAST = re.compile(
    r"\s*-?(?:hundred|thousand|million|billion|trillion|dozen|lakh|crore|mio|mln|bn|pi)s?\b"
    r"|\s*(?:point\b|and\s+(?:a|one|two|three)\s)|\s+or\s+(?:more|less|fewer|so|higher|lower)\b"
    r"|\s*[√π∞±∓^×÷·≤≥≠]|\s*[<>](?![^<>]*>)|\+|\s*-\s*$|-ish\b"
    r"|\s*\\(?:pi|sqrt|pm|mp|times|cdot|div|infty|leq?|geq?|neq?)(?![a-zA-Z])"
    r"|\s+(?:to\s+the|less|fewer)\s"
    r"|\s+in\s+(?:binary|octal|hex|base)|\s+and\s*/\s*or\b|,?\s+give\s+or\s+take\b"
    r"|\W{0,3}(?:(?:is|was|are|would\s+be|seems)\s*)?(?:not|n['’]t|no|never|wrong|incorrect|false)\b",
    re.IGNORECASE,
)


def numeric(
    tolerance: float | None = None, *, relative: float = 0.0, extract: Extract | None = None
) -> Callable[[Trace], float]:
    r"""1 if the answer is a number close enough to ``task.answer``, 0 otherwise.

    An answer holds exactly one number: whole, decimal, with commas between thousands, with an
    exponent (``5e3``, ``5 \times 10^3``), a fraction such as ``3/4``, or a mixed number (``2½``).
    Its sign may be any dash, with spaces or a currency behind it (``–5``, ``- 5``, ``-$5``), or a
    word (``minus 5``). Words and units around it do not matter, but anything that changes its value
    makes it invalid: a second number, in digits or in words, ``5 million``, ``x - 5``, ``√5``, ``≥
    5``, ``at least 5``, ``5 or so``, ``5 is wrong``. Doubt does not, for the number is held to its
    value: ``about 5``, ``maybe 5``, ``5?``. Compared without rounding, however large.

    Range: 0 or 1.

    Formula: 1 if |x − answer| ≤ max(tolerance, relative · |answer|) for every stated answer x;
    else 0. The tolerance is 1e-6 · min(1, |answer|) unless it is set.

    Source: Python's ``math.isclose`` (PEP 485), with the tolerance relative to the right answer
    alone, so that a large guess does not widen it.

    Known ways to game it: a tolerance that spans many of the possible answers rewards a guess in
        the middle; if answers are small whole numbers, the most frequent one pays as well.

    Args:
        tolerance: Largest absolute error that is right, in the answer's unit. By default a
            millionth, and of an answer below 1 a millionth of it.
        relative: Largest error that is right as a share of the answer, below 1.
        extract: Finds the stated answers in the last message; ``marked("Answer:")`` by default.

    Raises:
        ConfigError: If a tolerance is negative or not finite, or ``relative`` is 1 or more (then 0
            would always be right).
        RubricError: (when scoring) ``task.answer`` is neither a finite number nor the text of one.
    """
    if tolerance is not None and not (math.isfinite(tolerance) and tolerance >= 0):
        raise ConfigError(f"numeric: tolerance must be finite and at least 0, got {tolerance}")
    if not 0 <= relative < 1:
        raise ConfigError(f"numeric: relative must be at least 0 and below 1, got {relative}")
    extract = checked_extract(extract or marked("Answer:"), "numeric")

    def numeric(trace: Trace) -> float:
        answer = _golden(trace)
        absolute = (
            min(Fraction(1), abs(answer)) / 10**6 if tolerance is None else Fraction(tolerance)
        )
        margin = max(absolute, Fraction(relative) * abs(answer))

        def near(text: str) -> bool:
            value = only_number(text)
            return value is not None and abs(value - answer) <= margin

        return every_one(stated_answers(extract, trace), near)

    return numeric


def only_number(text: str) -> Fraction | None:
    """Return the text's only number, exactly; None if it has none, several, or a broken one."""
    if len(text) > 2000:
        return None
    text = mixed(repeating(plain(text)))
    text = _RAISED.sub(lambda raised: f"^{{{unicodedata.normalize('NFKC', raised[0])}}}", text)
    text = "".join(_plain(character) for character in text)
    if hedges(text):
        return None
    text = _FRACTION.sub(r"\1/\2", text)
    text = _POWER_OF_TEN.sub(lambda power: f"e{power[1] or power[2]}", text)
    text = _GLUED.sub(" ", text)
    text = _UNIT_POWER.sub(r" \1", _DEGREES.sub("°", text))
    matches = [match for match in _NUMBER.finditer(text) if _DIGIT.search(match[0])]
    if len(matches) != 1:
        return None
    match = matches[0]
    before, after = text[: match.start()], text[match.end() :]
    # Digits that belong to no number (those of 3.1.4, x2), superscripts, ½ and numerals.
    if any(map(str.isnumeric, before + after)):
        return None
    sign = _sign(before)
    if sign is None or _CHANGES_LAST.match(after) or _is_hidden(after[:1]):
        return None
    whole, decimals, exponent, below = match.groups()
    if not whole and not decimals:
        return None
    value = Fraction((whole or "0").replace(",", "") + (decimals or ""))
    value *= Fraction(10) ** int(exponent or 0)
    if below is not None:
        if not int(below):
            return None
        value /= int(below)
    return sign * value


def _plain(character: str) -> str:
    """Return a character as ASCII writes it, if it is a dash, a plus, a slash or a space."""
    if character.isascii():
        return character
    if character in _DASHES or unicodedata.category(character) == "Pd":
        return "-"
    if character.isspace():
        return " "
    if character in "⁄∕":  # of a fraction, and for division
        return "/"
    return "+" if character in "＋﹢➕" else character


def _is_hidden(character: str) -> bool:
    """Return whether a character cannot be seen by itself: a joiner, or an accent."""
    return unicodedata.category(character or " ") in ("Cc", "Cf", "Mn", "Me")


def _sign(before: str) -> int | None:
    """Return the sign of the number that a text comes before; None if its value is another."""
    end = len(before)
    while end and (
        before[end - 1].isspace()
        or before[end - 1] in _OPENING
        or unicodedata.category(before[end - 1]) == "Sc"
    ):
        end -= 1
    rest, gap = before[:end], before[end:]
    if word := _SIGN_WORD.search(rest):
        head = rest[: word.start()].rstrip()
        if head.endswith(("+", "-")) or re.search(r"\b(?:or|minus|negative|plus)$", head, re.I):
            return None  # minus minus 5, plus or minus 5
        return -1 if word[1].lower() in ("minus", "negative") else 1
    if rest.endswith(("+", "-")):
        head = rest[:-1].rstrip()
        joined = head == rest[:-1] or gap[:1].isspace()  # x-5 and x - 5, but not: x is -5
        if head.endswith(("+", "-")) or _SIGN_WORD.search(head) or _alters(head):
            return None
        if joined and head and (head[-1].isalnum() or head[-1] in ")]}.%"):
            return None  # something less 5, or a dash between words
        return -1 if rest[-1] == "-" else 1
    return None if _alters(rest) else 1


def _alters(before: str) -> bool:
    """Return whether the end of a text makes another number of the one behind it."""
    changes = _CHANGES_NEXT.search(before) and not _TAG.search(before)
    return bool(changes) or _is_hidden(before[-1:])


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
