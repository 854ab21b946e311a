"""What is shown of a document: the part around the match, or one section."""

from __future__ import annotations

import re
import unicodedata

from vf.tools.search.budget import MOST_CHARS_PER_TOKEN, CountTokens, fit, longest_prefix
from vf.tools.search.markup import escape, one_line

_WORD = re.compile(r"\w+")
_CHARS_PER_TOKEN = 4  # about; the cut to the budget follows
_MOST_WORDS = 64
_ENDING = 3  # letters that another form of a word has beyond the beginning that they share
SEARCHED = 200_000  # characters: no other thread runs in the meantime
_LEAD = "… "
_BREAKS = ("\n\n", "\n", ". ", " ")


def snippet(text: str, query: str, limit: int, count: CountTokens) -> str:
    """Return one escaped line of a text: the whole if it fits, else the part around the match.

    Args:
        text: A document's text.
        query: The query that was searched for.
        limit: Most tokens.
        count: Counts tokens.
    """
    width = _CHARS_PER_TOKEN * limit
    if len(text) <= 2 * width:
        line = one_line(escape(text))
        if count(line) <= limit:
            return line
    start, end = window(text, query, width)
    line = one_line(escape(text[start:end]))
    lead = _LEAD if start else ""
    return fit(lead + line + (" …" if end < len(text) else ""), limit, count)


def window(text: str, query: str, width: int) -> tuple[int, int]:
    """Return where the part of a text lies that holds most of the query's words.

    Words count by their length (a cheap stand-in for how rare they are), each once, with any
    ending; of equal parts the first is taken. The first match lies near its beginning. Only the
    first 200,000 characters are searched.

    Args:
        text: A document's text.
        query: The query that was searched for.
        width: Characters.
    """
    if len(text) <= width:
        return 0, len(text)
    matches = _matches(text[:SEARCHED], query)
    weight, first, best = 0, 0, (0, 0)
    inside: dict[str, int] = {}
    for position, word in matches:
        inside[word] = inside.get(word, 0) + 1
        weight += len(word) if inside[word] == 1 else 0
        while position - matches[first][0] > width * 2 // 3:
            left = matches[first][1]
            inside[left] -= 1
            weight -= len(left) if inside[left] == 0 else 0
            first += 1
        if weight > best[0]:
            best = weight, matches[first][0]
    start = max(0, min(best[1] - width // 6, len(text) - width))
    if start:  # begin with a whole word
        space = re.compile(r"\s").search(text, start, start + 40)
        start = space.end() if space else start
    return start, min(len(text), start + width)


def _matches(text: str, query: str) -> list[tuple[int, str]]:
    """Return where the query's words begin in a text, and which word each is."""
    stems = {_stem(word) for word in _WORD.findall(_folded(query))[:_MOST_WORDS]}
    if not stems:
        return []
    longest_first = sorted(stems, key=lambda stem: (-len(stem), stem))
    stem = "|".join(map(re.escape, longest_first))
    pattern = re.compile(rf"(?<!\w)({stem})[^\W\d]{{0,{_ENDING}}}(?!\w)")
    return [(match.start(), match[1]) for match in pattern.finditer(_folded(text))]


def _stem(word: str) -> str:
    """Return the beginning that a word's other forms usually share; a number has none."""
    return word if len(word) < 5 or not word.isalpha() else word[: max(4, len(word) - 2)]


def _folded(text: str) -> str:
    """Return a text in lower case and without accents, of the same length."""
    return text.lower() if text.isascii() else text.translate(_FOLDED)


class _Folded(dict[int, str]):
    """Characters in lower case and without accents, worked out when they are first met."""

    def __missing__(self, code: int) -> str:
        lower = unicodedata.normalize("NFD", chr(code))[0].lower()
        self[code] = lower if len(lower) == 1 else chr(code)
        return self[code]


_FOLDED = _Folded()


def sections(text: str, limit: int, count: CountTokens) -> list[str]:
    """Return a text, escaped, in parts of at most so many tokens, cut where it breaks best.

    A text without anything in it is one empty part.
    """
    parts, at = [], 0
    while at < len(text):
        # Escaped bit by bit: escaping a large text in one go would hold up every other thread.
        ahead = escape(text[at : at + MOST_CHARS_PER_TOKEN * limit + 1])
        end = max(1, longest_prefix(ahead, limit, count))
        if at + end < len(text):
            end = _break_before(ahead, end)
        if part := ahead[:end].strip():
            parts.append(part)
        at += end
    return parts or [""]


def _break_before(text: str, end: int) -> int:
    for mark in _BREAKS:
        at = text.rfind(mark, end // 2, end)
        if at > 0:
            return at + len(mark)
    return end
