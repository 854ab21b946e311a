"""JSON and TOML that somebody may have sent: what cannot be read is a ValueError."""

from __future__ import annotations

import json
import tomllib
from typing import Any

_DEEP = "it is nested too deeply"


def parse_json(text: str | bytes) -> Any:
    """Return what JSON says.

    Raises:
        ValueError: If it is not JSON, or nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(_DEEP) from None


def parse_toml(text: str) -> dict[str, Any]:
    """Return what TOML says.

    Raises:
        ValueError: If it is not TOML (as ``tomllib.TOMLDecodeError``), or nested too deeply.
    """
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError(_DEEP) from None
