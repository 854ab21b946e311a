"""Nearest-name suggestions for error messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the nearest known names, or ``""`` if none is near."""
    near = difflib.get_close_matches(word, list(known), n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(repr(name) for name in near)}?" if near else ""
