"""Counting tokens, and cutting text to a number of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

CountTokens: TypeAlias = Callable[[str], int]

_BYTES_PER_TOKEN = 3
MOST_CHARS_PER_TOKEN = 8
_CLOSE = 0.93  # of the limit: near enough to stop looking for a longer prefix
_MORE = " …"


def estimate_tokens(text: str) -> int:
    """Return about how many tokens a text has, on the high side for prose, without a tokenizer.

    A third of its UTF-8 bytes, and every digit whole: digits are tokens of their own in many
    vocabularies. Against SmolLM2's tokenizer (49,152 tokens) this is a sixth too high for English
    prose and a sixth too low for a list of the world's city names; a small vocabulary makes more
    tokens of everything.
    """
    raw = text.encode("utf-8", "replace")
    rest = len(raw.translate(None, b"0123456789"))
    return len(raw) - rest + math.ceil(rest / _BYTES_PER_TOKEN)


def longest_prefix(text: str, limit: int, count: CountTokens) -> int:
    """Return how many characters of a text fit into a number of tokens.

    It is found in a few counts: by interpolation, up to 7 % short of the limit. A prefix is never
    longer than 8 characters per token, so that no more of a long text is ever counted.

    Args:
        text: The text.
        limit: Most tokens; none fit into 0 or less.
        count: Counts tokens.
    """
    if limit < 1:
        return 0
    fits, too_long = 0, min(len(text), MOST_CHARS_PER_TOKEN * limit) + 1
    at = min(too_long - 1, 4 * limit)
    while fits + 1 < too_long:
        tokens = count(text[:at])
        if tokens <= limit:
            fits = at
            if tokens >= _CLOSE * limit:
                break
        else:
            too_long = at
        guess = int(at * 0.97 * limit / max(1, tokens))
        middle = (fits + too_long) // 2
        at = guess if fits < guess < too_long else middle
    return fits


def fit(text: str, limit: int, count: CountTokens) -> str:
    """Return a text cut to a number of tokens, between words where there are any.

    What was cut ends with an ellipsis, which is counted.
    """
    if len(text) <= MOST_CHARS_PER_TOKEN * limit and count(text) <= limit:
        return text
    end = longest_prefix(text, limit - count(_MORE), count)
    while end > 0:
        cut = _at_a_word(text, end) + _MORE
        if count(cut) <= limit:
            return cut
        end = end * 9 // 10
    return ""


def _at_a_word(text: str, end: int) -> str:
    if end >= len(text) or text[end].isspace():
        return text[:end].rstrip()
    space = max(text.rfind(" ", 0, end), text.rfind("\n", 0, end))
    return text[: space if space > end // 2 else end].rstrip()
