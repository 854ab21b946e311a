r"""The unit behind a value: ``5 cm``, ``5\text{ cm}^2``, ``9.8 m/s^2``, ``5 apples``.

It is left out of a comparison, unless two units are known to differ: 5 cm are not 5 km. A letter
that follows its number without a space, as in ``2t``, is a variable.
"""

from __future__ import annotations

import re

_PREFIXES = {"": "", "m": "milli", "c": "centi", "d": "deci", "k": "kilo", "M": "mega"}
# Symbols and names, in pairs: those that take a prefix, and others.
_SI = (
    "m meter g gram s second l liter L liter Hz hertz J joule W watt N newton V volt A ampere "
    "Pa pascal mol mole eV electronvolt"
)
_OTHERS = (
    "in inch ft foot feet foot yd yard mi mile lb pound oz ounce gal gallon sec second min minute "
    "h hour hr hour hrs hour yr year K kelvin C celsius F fahrenheit deg degree rad radian "
    "mph mile/hour kmh kilometer/hour sq square cu cubic"
)


def _pairs(text: str) -> dict[str, str]:
    words = text.split()
    return dict(zip(words[::2], words[1::2], strict=True))


_NAMES = _pairs(_OTHERS)
for _symbol, _name in _pairs(_SI).items():
    _NAMES |= {prefix + _symbol: word + _name for prefix, word in _PREFIXES.items()}
_POWERS = {"square": "^2", "cubic": "^3"}
_KNOWN = {*_NAMES.values(), "day", "week", "month", "cent", "dollar"}
_RAISED = r"(?:\s*(?:\^|\*\*)\s*(?:-?\d|\{\s*-?\d\s*\}))?"
_TEXT = r"\\(?:text(?:rm|normal)?|mbox|mathrm)\s*\{(?:\\.|[^{}\\])*\}"
_WORD = (
    rf"(?:\^\s*\\circ\s*)?(?:(?:{'|'.join([*_NAMES, 'day', 'men'])})|[a-zA-Z]{{4,}})(?![a-zA-Z])\.?"
)
_GAP = r"(?:\s|~|\\[,;:! ]|\\q?quad(?![a-zA-Z]))*+"
_QUOTIENT = rf"\\frac\s*\{{{_GAP}{_TEXT}{_RAISED}\s*\}}\s*\{{{_GAP}{_TEXT}{_RAISED}\s*\}}"
_EACH = rf"(?:{_QUOTIENT}|(?:{_TEXT}|{_WORD}){_RAISED})"
_BETWEEN = rf"{_GAP}(?:/|\*|\\cdot|\\times|per\b)?{_GAP}"
_UNIT = re.compile(
    rf"(?:(?<=[\d}})%])|(?<=[a-zA-Z])(?={_GAP}{_TEXT})){_GAP}({_EACH}(?:{_BETWEEN}{_EACH})*)\s*$"
)
_LETTER = re.compile(r"(?<![a-zA-Z\\])[a-zA-Z](?![a-zA-Z])")
_MARKUP = re.compile(r"\\(?:text(?:rm|normal)?|mbox|mathrm|[,;:! ])|[{}~\s]")
_TOKEN = re.compile(r"[a-zA-Z]+|\^-?\d|\W")


def without_unit(text: str, *, letters: bool = True) -> tuple[str, str]:
    """Return a value without the unit behind it, and the unit; ``""`` where there is none.

    Args:
        text: An expression, LaTeX or plain.
        letters: Whether letters may be variables: then one that is behind its number without a
            space, or beside other letters, is no unit.
    """
    match = _UNIT.search(text)
    if match is None:
        return text, ""
    value, unit = text[: match.start()], match[1]
    alone = unit[:1].isalpha() and len(unit.split("/")[0].split("^")[0].rstrip()) == 1
    glued = match.start() == match.start(1)
    if letters and alone and (glued or _LETTER.search(value)):
        return text, ""
    return value, unit


def differ(one: str, other: str) -> bool:
    """Return whether two units are known, and not the same."""
    names = _names(one), _names(other)
    return None not in names and names[0] != names[1]


def _names(unit: str) -> str | None:
    """Return a unit in full words; None where it is not known, or there is none."""
    unit = re.sub(r"\\frac\s*(\{.*\})\s*(\{.*\})", r"\1/\2", unit)
    names, power = [], ""
    for token in _TOKEN.findall(_MARKUP.sub(" ", unit)):
        name = _NAMES.get(token) or _singular(token)
        if token[0].isalpha():
            if name in _POWERS:
                power = _POWERS[name]
                continue
            if name not in _KNOWN:
                return None
            names.append(name + power)
            power = ""
        elif token == "/" or token[0] == "^":
            names.append(token)
    return "".join(names) or None


def _singular(word: str) -> str:
    word = word.lower().replace("metre", "meter").replace("litre", "liter")
    return {"feet": "foot", "inches": "inch"}.get(word, word.removesuffix("s"))
