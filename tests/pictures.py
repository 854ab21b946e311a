"""Pictures as bytes, and the same in the form of each API."""

from __future__ import annotations

import base64
import io
from typing import Any

from PIL import Image as Pillow

RED, BLUE = (200, 0, 0), (0, 0, 200)


def png(colour: tuple[int, int, int] = RED, size: tuple[int, int] = (4, 2)) -> bytes:
    """Return a picture of one colour."""
    out = io.BytesIO()
    Pillow.new("RGB", size, colour).save(out, "PNG")
    return out.getvalue()


def url(data: bytes, kind: str = "image/png") -> str:
    """Return bytes as a data URL."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def image_url(data: bytes) -> dict[str, Any]:
    """Return a part of Chat Completions."""
    return {"type": "image_url", "image_url": {"url": url(data)}}


def text(said: str) -> dict[str, Any]:
    """Return a part of Chat Completions."""
    return {"type": "text", "text": said}


def animated() -> bytes:
    """Return a GIF of two frames."""
    out = io.BytesIO()
    frames = [Pillow.new("RGB", (4, 4), colour) for colour in (RED, BLUE)]
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:])
    return out.getvalue()
