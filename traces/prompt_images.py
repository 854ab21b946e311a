"""The images of a task's prompt: data URLs in memory, names of files in a trace."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from vf.traces.images import ENDINGS, FOLDER, BadImage, Image, decoded, is_picture


def portable(prompt: Any) -> Any:
    """Return a prompt whose pictures are data URLs, so that it is JSON.

    Args:
        prompt: Text, or chat messages whose content may hold texts and pictures.
    """
    if not isinstance(prompt, list):
        return prompt
    return [_portable(entry) for entry in prompt]


def by_reference(prompt: Any) -> tuple[Any, list[Image]]:
    """Return a prompt whose data URLs are names of files, and the images that these hold.

    Args:
        prompt: Text, or messages in OpenAI's chat format.
    """
    found: list[Image] = []
    if not isinstance(prompt, list):
        return prompt, found

    def named(part: Any) -> Any:
        match part:
            case {"type": "image_url", "image_url": {"url": str(url)} as inner}:
                image = _undecoded(url)
                if image is not None:
                    found.append(image)
                    return {**part, "image_url": {**inner, "url": f"{FOLDER}/{image.name}"}}
        return part

    return [
        {**entry, "content": [named(part) for part in entry["content"]]}
        if isinstance(entry, Mapping) and isinstance(entry.get("content"), list)
        else entry
        for entry in prompt
    ], found


def holds_images(prompt: Any) -> bool:
    """Return whether a prompt of chat messages holds an image part of any API."""
    contents = (entry.get("content") for entry in prompt) if isinstance(prompt, list) else ()
    return any(
        isinstance(part, Mapping) and part.get("type") in ("image_url", "input_image", "image")
        for content in contents
        if isinstance(content, list)
        for part in content
    )


def _portable(entry: Any) -> Any:
    content = entry.get("content") if isinstance(entry, Mapping) else None
    if not isinstance(content, list | tuple):
        return entry
    return {**entry, "content": [_portable_part(part) for part in content]}


def _portable_part(part: Any) -> Any:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if is_picture(part):
        return Image.of(part).to_openai()
    if isinstance(part, Mapping) and part.get("type") == "image" and "image" in part:
        return Image.of(part["image"]).to_openai()
    return part


def _undecoded(url: str) -> Image | None:
    """Return what a data URL holds, as far as it can be told without decoding the image."""
    head, _, data = url.partition(",")
    kind = head.removeprefix("data:").removesuffix(";base64")
    if head != f"data:{kind};base64" or kind not in ENDINGS:
        return None
    with suppress(BadImage):
        held = decoded(data)
        return Image(hashlib.sha256(held).hexdigest(), kind, data=held)
    return None
