"""Where the model that ships with the library lies."""

from __future__ import annotations

from pathlib import Path

TINY = "tiny"


def resolve_model(name: str) -> str:
    """Return the folder of the shipped model for ``tiny``, and any other name as it is."""
    return str(Path(__file__).parent / "tiny") if name == TINY else name
