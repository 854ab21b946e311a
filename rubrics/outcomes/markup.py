r"""Takes off what only changes how an answer looks: LaTeX, Markdown and HTML.

``**B**``, ``$B$``, ``\boxed{\text{B}}`` and ``B`` are the same answer to every outcome. Only markup
goes: the text that it holds is kept, so that no second answer can hide in it.
"""

from __future__ import annotations

import re
import unicodedata

from vf.rubrics.outcomes.extract import closing_brace

_MAX_LAYERS = 8

_FONT = (
    r"\\(?:[fmh]?box|boxed|text(?:bf|it|rm|tt|sf|sc|sl|up|md|normal)?|math(?:bf|it|rm|tt|sf|normal)"
    r"|emph|underline|operatorname|bm|pmb|boldsymbol|ensuremath|(?:text)?color\s*\{\w*\})\s*"
)
_SWITCH = (
    r"\\(?:(?:display|text|script)style|bf|it|rm|tt|sf|bfseries|itshape|rmfamily|large|Large)"
    r"(?![a-zA-Z])\s*"
)
# Around a whole answer; what is inside does not hold the mark itself.
_WRAPPERS = [
    re.compile(pattern, re.DOTALL)
    for pattern in (
        r"```(?:\w*\n)?([^`]+)```",
        r"`{1,2}([^`]+)`{1,2}",
        r"\*{1,3}([^*]+)\*{1,3}",
        r"_{1,3}(?![a-z]+_)([^_]+)_{1,3}",  # not Python's __init__
        r"\${1,2}((?:[^$\\]|\\.)+)\${1,2}",
        r"\\\(((?:(?!\\[()]).)+)\\\)",
        r"\\\[((?:(?!\\[\[\]]).)+)\\\]",
        r"<(?:b|i|u|em|strong|code)>([^<]+)</\w+>",
        rf"{_SWITCH}(.+)",
    )
]
_GROUP = re.compile(rf"{_FONT}(?=\{{)|(?=\{{\s*{_SWITCH})")
_STYLED = re.compile(rf"{_FONT}\{{([^{{}}]*)\}}")
_DROPPED = re.compile(rf"{_SWITCH}|\\[()\[\]]|</?(?:b|i|u|em|strong|code)>")
_SPACE = re.compile(
    r"\\[,;:!> ]|\\(?:q?quad|enspace|thinspace)(?![a-zA-Z])|[\u00a0\u2000-\u200a\u202f\u3000]"
)
_ESCAPED = re.compile(r"\\([$%#&_{}])")
# What is set between thousands in place of a comma.
_GAP = r"(?:,\\!|,|\{,\}|\\[,:;! ]|['’_ \u00a0\u2009\u202f])"
_THOUSANDS = re.compile(rf"(?<![\w.,])\d{{1,3}}(?:{_GAP}\d{{3}})+(?![\d,])")
# With more than one point, each of them parts thousands, as in German.
_POINTED = re.compile(r"(?<![\w.,])\d{1,3}(?:\.\d{3}){2,}(?!\d|[.,]\d)")
# As in India: two digits between commas, but three behind the last.
_LAKHS = re.compile(r"(?<![\w.,])\d{1,2}(?:,\d{2}){1,100},\d{3}(?![\d,])")
# With points or gaps between thousands, a comma is before decimals.
_COMMA_DECIMALS = re.compile(
    r"(?<![\w.,])(\d{1,3}(?:[.'’ \u00a0\u2009\u202f]\d{3}){1,100}),(\d{1,100})(?!\w|[.,]\d)"
)
_VULGAR = re.compile(r"\s?([¼-¾⅐-⅞])")
# A whole number and a proper fraction: two and a half.
_MIXED = re.compile(
    r"(?<![\w.,/^])(\d{1,100})(?:\s+(\d{1,100})\s?/\s?(\d{1,100})"
    r"|\s*\\[dtc]?frac\s*\{\s*(\d{1,100})\s*\}\s*\{\s*(\d{1,100})\s*\})(?!\w|[.,/]\d)"
)
_REPEATING = re.compile(
    r"(?<![\d.,])(\d{0,100})\.(\d{0,100})(?:\\(?:overline|bar|dot)\s*"
    r"(?:\{\s*(\d{1,100})\s*\}|(\d))|\((\d{1,100})\))(?!\d)"
)
# A decimal that repeats itself three times, and then has dots: 0.333..., 0.1666...
_DOTTED = re.compile(
    r"(?<![\d.,])(\d{1,100}\.\d{0,20}?)(\d{1,6})\2{2,20}(?:\.\.\.|…|\\l?dots(?![a-zA-Z]))(?!\s*\d)"
)


def unwrapped(text: str) -> str:
    """Return an answer without the markup around all of it."""
    for _ in range(_MAX_LAYERS):
        bare = text.strip()
        group = _GROUP.match(bare)
        if group and closing_brace(bare, group.end()) == len(bare) - 1:
            bare = bare[group.end() + 1 : -1].strip()
        matches = (pattern.fullmatch(bare) for pattern in _WRAPPERS)
        bare = next((match[1].strip() for match in matches if match), bare)
        if bare == text:
            break
        text = bare
    return text


def plain(text: str) -> str:
    r"""Return an answer without any markup: fonts, delimiters, escapes and LaTeX's spaces.

    Thousands have commas between them afterwards: ``5{,}000`` and ``5\,000`` are ``5,000``.
    """
    text = thousands(unwrapped(text))
    for _ in range(_MAX_LAYERS):
        text, count = _STYLED.subn(_without_style, text)
        if not count:
            break
    text = _SPACE.sub(" ", _DROPPED.sub("", text))
    return _ESCAPED.sub(r"\1", text).strip()


def thousands(text: str) -> str:
    """Return a text whose thousands have commas between them, and whose decimals follow a point."""
    text = _COMMA_DECIMALS.sub(lambda number: f"{_digits(number[1])}.{number[2]}", text)
    text = _LAKHS.sub(lambda number: _digits(number[0]), text)
    text = _POINTED.sub(lambda number: number[0].replace(".", ","), text)
    return _THOUSANDS.sub(lambda number: re.sub(_GAP, ",", number[0]), text)


def repeating(text: str) -> str:
    r"""Return a text whose repeating decimals are fractions: ``0.\overline{3}`` is a third."""
    return _REPEATING.sub(_as_fraction, _DOTTED.sub(r"\1\\overline{\2}", text))


def mixed(text: str) -> str:
    """Return a text whose mixed numbers are fractions: ``2 1/2`` and ``2½`` are ``5/2``."""
    return _MIXED.sub(_as_improper, _VULGAR.sub(_in_ascii, text))


def _in_ascii(fraction: re.Match[str]) -> str:
    return " " + unicodedata.normalize("NFKC", fraction[1]).replace("\N{FRACTION SLASH}", "/")


def _as_improper(number: re.Match[str]) -> str:
    whole, above, below = (int(group) for group in number.groups() if group is not None)
    return f"{whole * below + above}/{below}" if 0 < above < below else number[0]


def _digits(number: str) -> str:
    return "".join(filter(str.isdecimal, number))


def _without_style(styled: re.Match[str]) -> str:
    r"""Return the text, apart from its neighbours: ``\text{5}\text{6}`` is not 56."""
    before, after = styled.string[: styled.start()][-1:], styled.string[styled.end() :][:1]
    left = " " if before.isalnum() else ""
    return left + styled[1] + (" " if after.isalnum() or after == "\\" else "")


def _as_fraction(number: re.Match[str]) -> str:
    whole, once, *periods = number.groups()
    period = next(filter(None, periods))
    above = int(f"{whole}{once}{period}") - int(f"{whole}{once}" or "0")
    return f"\\frac{{{above}}}{{{10 ** len(once) * (10 ** len(period) - 1)}}}"
