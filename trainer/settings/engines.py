"""``[inference]``: whose table it is, that of one engine or of another. Loads no torch."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Tag

from vf.inference.settings import (
    EmbeddedSettings,
    EngineSettings,
    TinkerSettings,
    VllmSettings,
)


def _engine(raw: Any) -> str:
    """Return which engine a raw ``[inference]`` asks for."""
    if isinstance(raw, EngineSettings):
        return str(raw.engine)
    named = raw.get("engine", "embedded") if isinstance(raw, dict) else "embedded"
    return named if isinstance(named, str) else repr(named)


ENGINES: dict[str, type[EngineSettings]] = {
    "embedded": EmbeddedSettings,
    "vllm": VllmSettings,
    "tinker": TinkerSettings,
}
InferenceConfig = Annotated[
    Annotated[EmbeddedSettings, Tag("embedded")]
    | Annotated[VllmSettings, Tag("vllm")]
    | Annotated[TinkerSettings, Tag("tinker")],
    Discriminator(_engine),
]
