"""Numbers and bounds that an answer states in words: "six or 7", "at least 7", "7 at most"."""

from __future__ import annotations

import re

_SMALL = (
    "zero|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen"
    "|sixteen|seventeen|eighteen|nineteen"
)
_LARGE = (
    "twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety"
    "|(?:hundred|thousand|million|billion|trillion|dozen)s?"
)
# Words that are not always numbers: they are beside another alternative.
_MAYBE = "one|half|(?:thirds?|quarters?)|none|neither"
# "Or" in other languages. Beside a number it names a second one, or something else.
_OR = (
    "or|oder|ou|o|ó|ovvero|oppure|eller|tai|või|arba|lub|albo|czy|nebo|alebo|ili|или|либо"
    "|або|чи|sau|vagy|ή|veya|yahut|atau|hoặc|או|أو|یا|या|または|あるいは|또는|或者?"
)
_BESIDE = "or|to|and|nor|plus|minus|times"
_COMPARED = "more|less|fewer|greater|larger|bigger|smaller|higher|lower"
_VAGUE = "possibly|maybe|perhaps|probably|another|something|some|any|other|else|not"
# Behind a number they make another one of it.
_CHANGED = (
    r"halves|thirds|fourths|fifths|sixths|sevenths|eighths|ninths|tenths|hundredths|thousandths"
    r"|\w+(?:ee|io)nths|score|gross|grand|squared|cubed|factorial|doubled|tripled|halved|wrong"
    r"|incorrect|false|never"
)
_HEDGE = re.compile(
    rf"\b(?:{_SMALL}|{_LARGE})\b"
    rf"|\b(?:{_MAYBE})\s+(?:{_BESIDE})\b|\b(?:{_BESIDE}|between|either)\s+(?:a\s+)?(?:{_MAYBE})\b"
    rf"|\bat\s+(?:least|most)\b|\b(?:{_COMPARED})\s+than\b|\bor\s+(?:{_COMPARED}|so|thereabouts)\b"
    rf"|\bor\s+(?:{_VAGUE})\b"
    rf"|(?<=\d)(?:\s*|-)(?:{_CHANGED})\b"
    r"|\bup\s+to\b|\bexceed(?:s|ing)?\b"
    r"|\b(?:over|under|above|below|beyond|either)\s+(?=[-+]?\W?\d)"
    rf"|(?<!\w)(?:{_OR})\s+(?=[-+]?\W?\d)|(?<=\d)\s+(?:{_OR})(?![\w'’])(?!\s+(?:{_COMPARED}|so|thereabouts|{_VAGUE})\b)",
    re.IGNORECASE,
)


def hedges(text: str) -> set[str]:
    """Return what a text says in words that makes another number, or several, of one in digits.

    Doubt (``about 7``, ``maybe 7``, ``7?``) is no hedge: the number is held to its value. Bounds
    and denials are known in English, "or" in some other languages, too.
    """
    return {" ".join(match[0].lower().split()) for match in _HEDGE.finditer(text)}
