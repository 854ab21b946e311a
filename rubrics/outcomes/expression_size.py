r"""How large the numbers of an expression are, from its text alone: what costs too much to compute.

``9^{9^{9^9}}`` keeps a computer algebra system busy until it is killed. Most expressions of that
kind show it: a power, a factorial or a binomial coefficient of too many digits, brackets in
brackets, roots without end.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal

_MAX_DIGITS = 500_000.0  # of a power
_MAX_COUNT = 4.5  # digits of what a factorial or a binomial coefficient is of
_MAX_TERMS = 3_000  # of a power of a sum, expanded
_MAX_DEPTH = 30
_MAX_ROOTS = 16
_LETTER = math.log10(2)  # what a letter counts as
_TOKEN = re.compile(r"\d+(?:\.\d*)?|\.\d+|\\[a-zA-Z]+|\\.|[a-zA-Z]+|!+|\*\*|\S")
_OPEN, _CLOSED = ("{", "(", "[", r"\{"), ("}", ")", "]", r"\}")
_BETWEEN_TERMS = ("+", "-", ",", ";", "=", "<", ">", "&", r"\\", r"\pm", r"\mp", r"\cup")
_OVER = ("/", ":", r"\div")
_FRACTIONS = (r"\frac", r"\dfrac", r"\tfrac", r"\cfrac")
_BINOMIALS = (r"\binom", r"\dbinom", r"\tbinom")


def is_too_large(expression: str) -> bool:
    """Return whether an expression, LaTeX or plain, shows that computing it takes too much.

    Args:
        expression: An expression. One that cannot be read as such is judged by what it looks like.
    """
    tokens = _TOKEN.findall(expression)
    if sum(token in (r"\sqrt", "sqrt", r"\root") for token in tokens) > _MAX_ROOTS:
        return True
    try:
        reader = _Reader(tokens)
        while reader.tokens:
            reader.group()  # more than one where a bracket is closed that was not opened
    except OverflowError:
        return True
    return False


class _Reader:
    """Reads tokens, last one first; each method returns decimal digits, about and at most."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens[::-1]
        self.depth = 0
        self.terms = 1  # of the group that was read last

    def group(self) -> float:
        """Read a sum up to the bracket that ends it."""
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise OverflowError
        largest = digits = 0.0
        terms, over = 1, False
        while self.tokens:
            token = self.tokens[-1]
            if token in _CLOSED or token in _BETWEEN_TERMS or token in _OVER:
                self.tokens.pop()
                if token in _CLOSED:
                    break
                over = token in _OVER
                if token in _BETWEEN_TERMS:
                    largest, digits, terms = max(largest, digits), 0.0, terms + 1
            else:
                power = self.power()
                digits += 0.0 if over else power
        self.depth -= 1
        self.terms = terms
        return max(largest, digits)

    def power(self) -> float:
        """Read an item, and what it is raised to."""
        self.terms = 1
        digits, terms = self.item(), self.terms
        while self.tokens and self.tokens[-1].startswith("!"):
            self.tokens.pop()
            digits = _factorial(digits)
        if not self.tokens or self.tokens[-1] not in ("^", "**"):
            return digits
        self.tokens.pop()
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise OverflowError
        exponent = self.power() if self.tokens else 0.0
        self.depth -= 1
        digits = max(digits, _LETTER) * 10**exponent if exponent < 10 else math.inf
        # A sum of n terms has (p + n - 1 over n - 1) in its p-th power.
        others = terms - 1
        if digits > _MAX_DIGITS or (
            others and _binomial(10**exponent + others, others) > math.log10(_MAX_TERMS)
        ):
            raise OverflowError
        return digits

    def item(self) -> float:
        """Read a number, a word, a group, or a command with its arguments."""
        token = self.tokens.pop()
        if token in _OPEN:
            return self.group()
        if token in _FRACTIONS and len(self.tokens) > 1:
            above = self.arguments()
            self.terms = 1
            return above
        if token in _BINOMIALS and len(self.tokens) > 1:
            return _factorial(self.arguments())
        if token[0].isdecimal() or token[-1].isdecimal():
            number = Decimal(token)
            return float(number.log10()) if number > 1 else 0.0
        return _LETTER if token[0].isalpha() else 0.0

    def arguments(self) -> float:
        """Read the two arguments of a command, and return the first one's digits."""
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise OverflowError
        first = self.item()
        if self.tokens:
            self.item()
        self.depth -= 1
        return first


def _factorial(digits: float) -> float:
    if digits > _MAX_COUNT:
        raise OverflowError
    return math.lgamma(10**digits + 1) / math.log(10)


def _binomial(n: float, k: float) -> float:
    return (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)) / math.log(10)
