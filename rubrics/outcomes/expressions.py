"""An outcome that compares mathematical expressions."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Awaitable, Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from vf.rubrics.outcomes.expression_size import is_too_large
from vf.rubrics.outcomes.extract import (
    Extract,
    boxed,
    checked_extract,
    stated_answers,
    wrong_answer,
)
from vf.rubrics.outcomes.hedges import hedges
from vf.rubrics.outcomes.markup import mixed, plain, repeating, thousands, unwrapped
from vf.runtime.errors import ConfigError, ScoringDied
from vf.runtime.process_pool import InWorker, run_bounded
from vf.traces.trace import Trace

_MAX_EXPRESSION = 1000  # characters
# Between two expressions, of which Math-Verify would read one: an answer could name several.
_CHAIN = re.compile(
    r"=[^,;]*=|\\(?:approx|simeq|sim|cong|equiv|neq?|to|implies|iff)\b|arrow\b|[≈≃∼≅≡≠→⇒⇔]"
)
# A relation or a negation with nothing on one side: Math-Verify would read the other alone.
_RELATION = r"(?:[<>≤≥≪≫~!¬]|\\(?:leq?|geq?|lt|gt|ll|gg|neg|lnot|not)(?![a-zA-Z]))"
_OPEN = re.compile(rf"^\s*{_RELATION}|[<>≤≥≪≫]\s*$")
# A sign or name of a currency before or after a number.
_SIGNS = (
    r"(?:(?:US|CA?|AU?|NZ|HK)?\\?\$|[¢£¤¥₠-⃀]|"
    r"\\(?:euro|pounds|yen|textdollar|textsterling)(?![a-zA-Z])(?:\{\})?)"
)
_CODES = r"(?:USD|EUR|GBP|JPY|CNY|INR|CHF)(?![a-zA-Z])"
_CURRENCY = re.compile(
    rf"(?:{_SIGNS}|{_CODES})\s*(?=[-+]?[\d.])"
    rf"|(?<=\d)\s*(?:{_SIGNS}|{_CODES}|(?:dollars?|euros?)(?![a-zA-Z]))"
)
_FULL_STOP = re.compile(r"(?<!\.)\.$")
_RAISED = re.compile("⁻?[⁰¹²³⁴-⁹]+")  # x² as LaTeX has it
_LOWERED = re.compile("[₀-₉]+")
_AS_LATEX = {
    "⁄": "/",
    "∕": "/",
    "°": r"^\circ",
    "∞": r"\infty ",
    "·": r"\cdot ",
    "∈": r"\in ",
    "′": "'",
    r"\varnothing": r"\emptyset",
    r"\langle": "(",
    r"\rangle": ")",
}
# Signs, words and older commands that Math-Verify cannot read, and those for which they stand.
_OPERAND = r"\s*(?:\{([^{}]*)\}|\(([^()]*)\)|(\d+(?:\.\d+)?|[a-zA-Z](?![a-zA-Z])))"
_REWRITTEN = [
    (re.compile(rf"(?:√|(?<![a-zA-Z\\])sqrt|\\surd){_OPERAND}"), r"\\sqrt{\1\2\3}"),
    (re.compile(rf"(?:∛|(?<![a-zA-Z\\])cbrt){_OPERAND}"), r"\\sqrt[3]{\1\2\3}"),
    (re.compile(rf"\*\*{_OPERAND}"), r"^{\1\2\3}"),
    (re.compile(r"(?<=\d)\s*[xX]\s*(?=10\s*\^)"), r"\\times "),
    (re.compile(r"\\(?:nice|s|flat)frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\{([^{}]*)\\over(?![a-zA-Z])([^{}]*)\}"), r"\\frac{\1}{\2}"),
    (re.compile(r"(?<![a-zA-Z\\])(pi|theta|alpha|beta|ln)(?![a-zA-Z])"), r"\\\1 "),
    (
        re.compile(r"(?<![a-zA-Z\\])(log|exp|(?:arc)?(?:sin|cos|tan))(?=\s*[(_\d]| [a-zA-Z\\])"),
        r"\\\1 ",
    ),
]


def math_equal(
    *, precision: int = 6, timeout: float = 3.0, extract: Extract = boxed
) -> Callable[[Trace], Awaitable[float]]:
    r"""1 if the answer is mathematically equal to ``task.answer``, 0 otherwise.

    ``task.answer`` is LaTeX or a plain expression (``\frac{1}{2}``, ``0.5``, ``(x-1)(x+1)``), or a
    number. Compared by Math-Verify in another process, because some expressions would take forever
    or all memory: an undecided answer is worth 0. So is one whose text shows that it is too large
    (``9^{9^{9^9}}``), unless it is the golden one.

    Range: 0 or 1.

    Formula: 1 if Math-Verify finds every stated answer equal to the golden one, or if it is the
    same text; else 0. Exact numbers are compared exactly, decimals to ``precision``.

    Source: Math-Verify (https://github.com/huggingface/Math-Verify), of which a string of
    several answers (``5 or 6``, ``x = 6 = 5``, ``5 \approx 6``), an equation between numbers
    (``3 = 5``), half a relation (``\geq 5``) and an answer with unbalanced braces are refused
    beforehand. So is one of which it reads only a part, as of ``6 \lor 5``: there is then a
    number that may be replaced by another without a change of the answer's value. Numbers and
    bounds in words (``7 \text{ or six}``) are refused unless the golden answer has them. Units are
    left out here and not by Math-Verify, to which ``2t`` is 2: where the golden answer has
    variables, a letter beside a number is one. Two known units that differ (``5 cm``, ``5 km``)
    are not equal.

    Known ways to game it: restating the problem where the answer is an expression equal to it
    (``2^{10}`` for "compute 2^{10}"); there, use :func:`numeric`. Percentages equal both the
    number and its hundredth.

    Args:
        precision: Decimals to which two numbers must agree of which one is written with a decimal
            point. Below 1, and from 1e15 on, that many significant digits count instead.
        timeout: Seconds of processor time for comparing one message's answers. Honest ones take
            milliseconds, and long polynomials half a second.
        extract: Finds the stated answers in the last message; ``\boxed{...}`` by default.

    Raises:
        ConfigError: If a setting is out of range, or ``math-verify`` is not installed.
        RubricError: (when scoring) ``task.answer`` is not an expression that can be read.
    """
    if precision < 1:
        raise ConfigError(f"math_equal: precision must be at least 1, got {precision}")
    if not timeout > 0:
        raise ConfigError(f"math_equal: timeout must be positive, got {timeout}")
    extract = checked_extract(extract, "math_equal")
    if find_spec("math_verify") is None:
        raise ConfigError("math_equal needs the package math-verify: pip install 'vf-rl[rubrics]'")

    async def math_equal(trace: Trace) -> float:
        answer = trace.task.answer
        if isinstance(answer, bool) or not isinstance(answer, str | int | float):
            raise wrong_answer("math_equal", trace, "LaTeX, an expression or a number")
        golden = _expression(str(answer))
        if golden is None:
            raise wrong_answer("math_equal", trace, "one expression that Math-Verify can read")
        stated = [_expression(text) for text in stated_answers(extract, trace)]
        refused = [form for form in (_CHAIN, _OPEN) if not form.search(golden)]
        golden_words = _in_words(golden)
        if any(
            text is None
            or any(form.search(text) for form in refused)
            or _in_words(text) - golden_words
            or (text != golden and is_too_large(text))
            for text in stated
        ):
            stated = []  # some are not one, or too large; the golden one is still read
        try:
            equal = await run_bounded(_all_equal, golden, stated, precision, timeout=timeout)
        except ScoringDied:  # the answer's doing, unless the golden one does that with any
            await run_bounded(_all_equal, golden, ["0"], precision, timeout=timeout)
            return 0.0
        if equal is None:
            raise wrong_answer("math_equal", trace, "one expression that Math-Verify can read")
        return float(equal)

    return math_equal


def _expression(text: str) -> str | None:
    """Return an answer as one expression; None if it is not one."""
    text = "".join(map(_plain, text))
    text = unwrapped(_FULL_STOP.sub("", unwrapped(text)))
    text = _LOWERED.sub(_index, _RAISED.sub(_power, text))
    for sign, latex in _AS_LATEX.items():
        text = text.replace(sign, latex)
    for pattern, latex in _REWRITTEN:
        text = pattern.sub(latex, text)
    text = _CURRENCY.sub("", mixed(repeating(thousands(text)))).strip()
    depth = 0
    for at, character in enumerate(text):
        if character in "{}" and text[at - 1 : at] != "\\":
            depth += 1 if character == "{" else -1
            if depth < 0:
                return None
    if depth or not text or len(text) > _MAX_EXPRESSION or "$" in text or "\\boxed" in text:
        return None
    return text


def _power(raised: re.Match[str]) -> str:
    return f"^{{{unicodedata.normalize('NFKC', raised[0]).replace('−', '-')}}}"


def _index(lowered: re.Match[str]) -> str:
    return f"_{{{unicodedata.normalize('NFKC', lowered[0])}}}"


def _plain(character: str) -> str:
    """Return a character as ASCII writes it, if it is a dash or a digit."""
    if character in "−˗" or unicodedata.category(character) == "Pd":
        return "-"
    return str(unicodedata.decimal(character)) if character.isdecimal() else character


def _in_words(text: str) -> set[str]:
    """Return the numbers and bounds that an expression states in words, and numerals in signs."""
    words = plain(text)
    return hedges(words) - {"or"} | {c for c in words if unicodedata.category(c) in ("Nl", "No")}


def _load(module: str, name: str) -> Any:
    return getattr(import_module(module), name)


# Only a worker imports this module, because it is heavy.
_all_equal = InWorker(_load, "vf.rubrics.outcomes.math_process", "all_equal", name="all_equal")
