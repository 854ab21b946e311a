"""Comparing with Math-Verify, in a worker process: only there is this module imported."""

from __future__ import annotations

import logging
import re
from collections import Counter
from decimal import Decimal
from typing import Any

import sympy
from latex2sympy2_extended import NormalizationConfig
from math_verify import ExprExtractionConfig, LatexExtractionConfig, grader, parse, verify

from vf.rubrics.outcomes.units import differ, without_unit

# It warns at every call that its own time limits are off. The process has one, which also stops
# what is computed in C; theirs does not.
logging.getLogger("math_verify").setLevel(logging.ERROR)

_NUMBER = re.compile(r"\d+")
_LETTER = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z](?![a-zA-Z])")  # alone: no command, word or unit
_SCIENTIFIC = re.compile(r"(?<![\w.\\])(\d+\.?\d*|\.\d+)[eE]([-+]?\d{1,3})(?![\w.^])")
# Math-Verify would leave out any word behind a number, and letters that are variables, as in 2t.
_READING = (
    LatexExtractionConfig(
        normalization_config=NormalizationConfig(
            units=False, malformed_operators=True, nits=True, boxed="all"
        )
    ),
    ExprExtractionConfig(),
)
_OTHER_NUMBER, _OTHER_LETTER = "7919", "Q"
# The power of a unit at the end, as in 25 \text{ cm}^2: Math-Verify leaves units out.
_UNIT_POWER = re.compile(r"(?<=[a-zA-Z}])\s*\^\s*(?:[23]|\{[23]\})$")


def all_equal(golden: str, stated: list[str], precision: int) -> bool | None:
    """Return whether there are answers, all equal to the golden one; None if that is unreadable.

    Args:
        golden: The right answer, LaTeX or a plain expression.
        stated: The answers to compare with it.
        precision: Decimals to which numbers must agree, see :func:`math_equal`.
    """
    try:
        return _all_equal(golden, stated, precision)
    except MemoryError:  # ends the process
        raise
    except Exception:  # a stated answer's doing, unless the golden one raises with any other
        return None if _all_equal(golden, ["0"], precision) is None else False


def _all_equal(golden: str, stated: list[str], precision: int) -> bool | None:
    texts = [golden, *stated]
    scientific = [_SCIENTIFIC.sub(r"\1\\times 10^{\2}", text) for text in texts]
    equal = _each_equals(scientific[0], scientific[1:], precision)
    # 3e-7 may be meant as 3 times Euler's number less 7, but then by both.
    return equal or (_each_equals(golden, stated, precision) if scientific != texts else equal)


def _each_equals(golden: str, stated: list[str], precision: int) -> bool | None:
    value, unit = without_unit(golden)
    if not _read(golden):
        return None
    letters = _LETTER.search(value) is not None
    for text in stated:
        if text == golden:  # some, such as 12:00, have no value that equals itself
            continue
        without, other = without_unit(text, letters=letters)
        if differ(unit, other):
            return False
        # A letter that is no unit: 2t is 2 t.
        if not (_same(value, without, precision) or _same(golden, text, precision)):
            return False
        if _unread(text, letters) - _unread(golden, letters):
            return False
    return bool(stated)


def _same(golden: str, stated: str, precision: int) -> bool:
    value = _read(stated)
    # Of an equation between numbers, such as 3 = 5, Math-Verify reads the end.
    if not value or (isinstance(value[0], sympy.Eq) and not value[0].lhs.free_symbols):
        return False
    return bool(verify(_read(golden), value, float_rounding=precision, timeout_seconds=None))


def _unread(text: str, letters: bool) -> Counter[str]:
    r"""Return the numbers, and perhaps the letters, that the value of a text does not depend on.

    Where Math-Verify cannot read a whole text, it reads a part: ``6 \lor 5`` is 5 to it. So, unless
    its value shows all of them as they are written, each number is replaced by another: where that
    changes nothing, it was not read.
    """

    def read(text: str) -> list[Any]:
        return _read(without_unit(text, letters=letters)[0])[:1]

    text = _UNIT_POWER.sub("", text)
    value = read(text)
    matches = [*_NUMBER.finditer(text), *(_LETTER.finditer(text) if letters else ())]
    nodes = sympy.preorder_traversal(value)
    shown = Counter(str(node) for node in nodes if getattr(node, "is_Atom", False))
    unread: Counter[str] = Counter()
    if not Counter(match[0] for match in matches) - shown:
        return unread
    for match in matches:
        other = _OTHER_NUMBER if match[0].isdecimal() else _OTHER_LETTER
        if read(f"{text[: match.start()]}{other}{text[match.end() :]}") == value:
            unread[match[0]] += 1
    return unread


def _read(text: str) -> list[Any]:
    boxed = f"\\boxed{{{text}}}"
    return list(parse(boxed, _READING, fallback_mode="no_fallback", parsing_timeout=None))


_MAX_DECIMALS_EXPONENT = 15  # from here on, a double has no decimals
_POINTS = (sympy.Rational(7919, 1013), sympy.Rational(-6421, 3307))
_by_rounding = grader.sympy_numeric_eq


def _same_number(golden: Any, stated: Any, decimals: int, digits: int) -> bool:
    """Compare where Math-Verify compares numbers: exactly if both are, else to some digits.

    Math-Verify rounds to decimals, and drops what is below 1e-15: any two small numbers are equal
    to it, also inside of sets, intervals, matrices and equations.
    """
    if isinstance(golden, sympy.MatrixBase) or isinstance(stated, sympy.MatrixBase):
        return bool(_by_rounding(golden, stated, decimals, digits))  # calls this for each element
    golden_percent, stated_percent = (grader.get_pct_val(value) for value in (golden, stated))
    if golden_percent is not None and stated_percent is not None:
        return _equal(golden_percent, stated_percent, decimals, digits)
    if golden_percent is None and stated_percent is None:
        return _equal(golden, stated, decimals, digits)
    # 50% is a half, and it is also 50.
    return _equal(golden.doit(), stated.doit(), decimals, digits) or _equal(
        golden if golden_percent is None else golden_percent,
        stated if stated_percent is None else stated_percent,
        decimals,
        digits,
    )


def _equal(golden: Any, stated: Any, decimals: int, digits: int) -> bool:
    try:
        exact = not golden.has(sympy.Float) and not stated.has(sympy.Float)
        golden, stated = _as_written(golden), _as_written(stated)
        if golden.free_symbols or stated.free_symbols:
            claimed = _by_rounding(golden, stated, decimals, digits)
            return claimed and all(_vanishes(golden - stated, point) for point in _POINTS)
        return _vanishes(golden - stated) or (not exact and _close(golden, stated, decimals))
    except (ArithmeticError, AttributeError, TypeError, ValueError):
        return False  # something without a value


def _as_written(value: Any) -> Any:
    """Return an expression with each decimal as the fraction that its digits say."""
    return value.xreplace({f: sympy.Rational(str(f)) for f in value.atoms(sympy.Float)})


def _vanishes(difference: Any, point: Any = None) -> bool:
    """Return whether an expression is zero, as far as a hundred digits show."""
    symbols = sorted(difference.free_symbols, key=str)
    value = difference.xreplace({s: point + at for at, s in enumerate(symbols)})
    # Sympy computes with more digits until two are right; where it cannot, precision is 1.
    parts = value.evalf(2).as_real_imag()
    return all(part == 0 or (part.is_Float and part._prec == 1) for part in parts)


def _close(golden: Any, stated: Any, decimals: int) -> bool:
    """Compare to decimals, and numbers below 1 or without decimals to as many digits."""
    gap, *sizes = (
        Decimal(str(abs(value).evalf(20))) for value in (golden - stated, golden, stated)
    )
    exponent = max(sizes).adjusted()
    if 0 <= exponent < _MAX_DECIMALS_EXPONENT:
        exponent = -1
    return gap <= Decimal(5).scaleb(exponent - decimals)


grader.sympy_numeric_eq = _same_number

# Loads what the first comparisons need: forks of this process are at work from the start.
for _text in ("0.5", r"\sqrt{3} + 1", r"x^2 - \frac{x}{2}", "(1, 2)", r"\{1, 2\}", "x = 5"):
    all_equal(_text, [_text + " "], 6)
