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
_BESIDE = "or|to|and|nor|plus|minus|times"
_COMPARED = "more|less|fewer|greater|larger|bigger|smaller|higher|lower"
_VAGUE = "possibly|maybe|perhaps|probably|another|something|some|any|other|else|not"
_HEDGE = re.compile(
    rf"\b(?:{_SMALL}|{_LARGE})\b"
    rf"|\b(?:{_MAYBE})\s+(?:{_BESIDE})\b|\b(?:{_BESIDE}|between|either)\s+(?:a\s+)?(?:{_MAYBE})\b"
    rf"|\bat\s+(?:least|most)\b|\b(?:{_COMPARED})\s+than\b|\bor\s+(?:{_COMPARED}|so|thereabouts)\b"
    rf"|\bor\s+(?:{_VAGUE})\b"
    r"|\bup\s+to\b|\bexceed(?:s|ing)?\b"
    r"|\b(?:over|under|above|below|beyond|either|or)\s+(?=[-+]?\W?\d)"
    rf"|(?<=\d)\s+or\b(?!\s+(?:{_COMPARED}|so|thereabouts|{_VAGUE})\b)",
    re.IGNORECASE,
)


def hedges(text: str) -> set[str]:
    """Return what a text says in words that makes another number, or several, of one in digits."""
    return {" ".join(match[0].lower().split()) for match in _HEDGE.finditer(text)}
