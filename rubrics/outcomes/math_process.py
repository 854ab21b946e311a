"""Comparing with Math-Verify, in a worker process: only there is this module imported."""

from __future__ import annotations

import logging
from typing import Any

import sympy
from math_verify import parse, verify

# It warns at every call that its own time limits are off. The process has one, which also stops
# what is computed in C; theirs does not.
logging.getLogger("math_verify").setLevel(logging.ERROR)


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
    return bool(stated)


def _read(text: str) -> list[Any]:
    return list(parse(f"\\boxed{{{text}}}", fallback_mode="no_fallback", parsing_timeout=None))
