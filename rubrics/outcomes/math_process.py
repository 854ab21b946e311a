"""Comparing with Math-Verify, in a worker process: only there is this module imported."""

from __future__ import annotations

import logging
import re
from collections import Counter
from typing import Any

import sympy
from math_verify import parse, verify

# It warns at every call that its own time limits are off. The process has one, which also stops
# what is computed in C; theirs does not.
logging.getLogger("math_verify").setLevel(logging.ERROR)

_NUMBER = re.compile(r"\d+")
_LETTER = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z](?![a-zA-Z])")  # alone: no command, word or unit
_OTHER_NUMBER, _OTHER_LETTER = "7919", "Q"
# The power of a unit at the end, as in 25 \text{ cm}^2: Math-Verify leaves units out.
_UNIT_POWER = re.compile(r"(?<=[a-zA-Z}])\s*\^\s*(?:[23]|\{[23]\})$")


def all_equal(golden: str, stated: list[str], precision: int) -> bool | None:
    """Return whether there are answers, all equal to the golden one; None if that is unreadable.

    Args:
        golden: The right answer, LaTeX or a plain expression.
        stated: The answers to compare with it.
        precision: Decimals to which floating-point numbers must agree.
    """
    wanted = _read(golden)
    if not wanted:
        return None
    for text in stated:
        found = _read(text)
        # Of an equation between numbers, such as 3 = 5, Math-Verify reads the end.
        if not found or (isinstance(found[0], sympy.Eq) and not found[0].lhs.free_symbols):
            return False
        if not verify(wanted, found, float_rounding=precision, timeout_seconds=None):
            return False
        letters = _LETTER.search(golden) is not None
        if _unread(text, letters) - _unread(golden, letters):
            return False
    return bool(stated)


def _unread(text: str, letters: bool) -> Counter[str]:
    r"""Return the numbers, and perhaps the letters, that the value of a text does not depend on.

    Where Math-Verify cannot read a whole text, it reads a part: ``6 \lor 5`` is 5 to it. So each
    number is replaced by another: where that changes nothing, it was not read.
    """
    text = _UNIT_POWER.sub("", text)
    value = _read(text)[:1]
    places = [*_NUMBER.finditer(text), *(_LETTER.finditer(text) if letters else ())]
    unread: Counter[str] = Counter()
    for place in places:
        other = _OTHER_NUMBER if place[0].isdecimal() else _OTHER_LETTER
        if _read(f"{text[: place.start()]}{other}{text[place.end() :]}")[:1] == value:
            unread[place[0]] += 1
    return unread


def _read(text: str) -> list[Any]:
    return list(parse(f"\\boxed{{{text}}}", fallback_mode="no_fallback", parsing_timeout=None))
