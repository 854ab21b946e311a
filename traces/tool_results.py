"""What a tool returned, as a model reads it: text, or texts and images."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from vf.traces.images import Image, image_of, is_picture
from vf.traces.messages import writable

_ANY: TypeAdapter[Any] = TypeAdapter(Any)


def render_result(value: object) -> str:
    """Return a tool's result as the text of its tool message: text as it is, the rest as JSON.

    What has no JSON but a text of its own, such as a number of NumPy's, becomes that text.

    Raises:
        TypeError: The value says nothing to a model that reads text; says what to return.
    """
    if isinstance(value, str):
        return writable(value)
    if value is None:
        return "done"
    kind = type(value)
    if isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(
            f"it returned {kind.__name__}; return text (.decode()), or an image: vf.Image.of(data)"
        )
    if holds_image(value):
        raise TypeError(f"it returned an image ({kind.__name__}), where only text can be shown")
    try:
        return _ANY.dump_json(value).decode()
    except ValueError as error:
        if kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__:
            raise TypeError(
                f"it returned an object of {kind.__name__}; return text, or what JSON can hold"
            ) from error
        return str(value)


_IMAGES = {"image_url", "data", "source"}  # where parts of OpenAI, MCP and Anthropic hold theirs


def holds_image(value: object) -> bool:
    """Return whether a result is a picture, or a list with a picture or an API's part of one."""
    parts = value if isinstance(value, list | tuple) else [value]
    return any(
        is_picture(part)
        or (isinstance(part, dict) and "image" in str(part.get("type")) and _IMAGES & part.keys())
        for part in parts
    )


def render_parts(value: object) -> list[str | Image]:
    """Return a tool's result that holds images as texts and images.

    Raises:
        BadImage: If an image cannot be read, or is beyond a limit.
        TypeError: If something else in it says nothing to a model; says what to return.
    """
    parts: list[str | Image] = []
    for part in value if isinstance(value, list | tuple) else [value]:
        if is_picture(part):
            parts.append(Image.of(part))
        elif isinstance(part, dict) and (image := image_of(part)) is not None:
            parts.append(image)
        elif isinstance(part, dict) and part.get("type") == "text":
            parts.append(writable(str(part.get("text"))))
        else:
            parts.append(render_result(part))
    return parts
