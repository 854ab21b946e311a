"""What differs between two evaluations, in lines that a person can read."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from typing import Any

SHOWN = 120  # characters of a value
AROUND = 20  # characters shown before the first that differs, of a long text


def differences(there: Any, now: Any, where: str = "") -> Iterator[str]:
    """Yield a line for each value that differs between two nested ones.

    Args:
        there: The earlier measurement.
        now: The measurement that would be made now.
        where: The name of the value, for the lines.
    """
    if isinstance(there, Mapping) and isinstance(now, Mapping):
        for key in sorted({*there, *now}, key=str):
            name = f"{where}.{key}" if where else str(key)
            yield from differences(there.get(key), now.get(key), name)
    elif isinstance(there, list) and isinstance(now, list) and len(there) == len(now):
        for index, (one, other) in enumerate(zip(there, now, strict=True)):
            yield from differences(one, other, f"{where}[{index}]")
    elif isinstance(there, str) and isinstance(now, str) and "\n" in there + now:
        yield from _lines(there.splitlines(), now.splitlines(), where)
    elif there != now:
        yield f"  {where}: {_both(there, now)}"


def _lines(there: list[str], now: list[str], where: str) -> Iterator[str]:
    """Yield the first lines of two texts that differ, and how many more do."""
    matcher = difflib.SequenceMatcher(None, there, now, autojunk=False)
    changed = [(a, b, c, d) for kind, a, b, c, d in matcher.get_opcodes() if kind != "equal"]
    if not changed:
        return
    a, b, c, d = changed[0]
    one, other = ("\n".join(part).strip() or None for part in (there[a:b], now[c:d]))
    rest = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
    yield f"  {where}, line {c + 1}: {_both(one, other)}{rest}"


def _both(there: Any, now: Any) -> str:
    one, other = _text(there), _text(now)
    # Of two long values, from where they begin to differ.
    same = next((n for n, (x, y) in enumerate(zip(one, other, strict=False)) if x != y), 0)
    start = max(0, same - AROUND) if max(len(one), len(other)) > SHOWN else 0
    return f"{_short(one, start)} → {_short(other, start)}"


def _text(value: Any) -> str:
    return "(none)" if value is None else json.dumps(value, ensure_ascii=False)


def _short(text: str, start: int) -> str:
    start = 0 if len(text) <= SHOWN else start
    cut = text[start : start + SHOWN]
    return ("…" if start else "") + cut + ("…" if start + SHOWN < len(text) else "")
