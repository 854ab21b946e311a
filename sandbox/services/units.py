"""Sizes and durations in Compose files."""

from __future__ import annotations

import re

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(b|kb?|mb?|gb?)?", re.IGNORECASE)
_SIZES = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:us|ms|s|m|h))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|m|h)")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_size(value: object) -> int:
    """Return bytes from ``512m``, ``1gb`` or a number of bytes.

    Raises:
        ValueError: If it is not a size.
    """
    parts = _SIZE.fullmatch(str(value).strip()) if isinstance(value, int | float | str) else None
    if parts is None or isinstance(value, bool):
        raise ValueError(f"{value!r} is no size such as 512m, 1g or a number of bytes")
    return int(float(parts[1]) * _SIZES[(parts[2] or "").lower()[:1]])


def parse_duration(value: object) -> float:
    """Return seconds from ``1m30s``, ``500ms`` and the like.

    Raises:
        ValueError: If it is not a duration.
    """
    if not isinstance(value, str) or not _DURATION.fullmatch(value.strip()):
        raise ValueError(f"{value!r} is no duration such as 500ms, 10s or 1m30s")
    return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(value))
