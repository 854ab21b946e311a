"""Images in messages: one form, whatever API or tool they came from, and the files that keep them.

A traces file names its images, and holds none: each is once, by the hash of its content, in the
folder ``images`` beside the file.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from vf.runtime.errors import ConfigError
from vf.runtime.extras import load

MOST_BYTES = 20 * 2**20  # of one image; what the large providers take
MOST_PIXELS = 40_000_000
FOLDER = "images"
ENDINGS = {"image/png": "png", "image/jpeg": "jpg", "image/webp": "webp", "image/gif": "gif"}
TYPES = {ending: kind for kind, ending in ENDINGS.items()}
_FORMATS = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp", "GIF": "image/gif"}
NAMED = re.compile(rf"(?:{FOLDER}/)?([0-9a-f]{{64}})\.(png|jpg|webp|gif)")
_PIXELS_PER_TOKEN = 750  # as Anthropic counts; Qwen2.5-VL has 784
_KNOWN = 4096  # checked images whose size is remembered: agents send theirs with each request

_checked: dict[str, tuple[str, int, int]] = {}  # media type, width and height, by hash


class BadImage(ConfigError):
    """An image cannot be read, or is beyond a limit."""


@dataclass(slots=True)
class Image:
    """An image of a message. :meth:`of` makes one of a picture, a file or a data URL.

    Attributes:
        sha256: The hash of its bytes, in hexadecimal.
        media_type: ``image/png``, ``image/jpeg``, ``image/webp`` or ``image/gif``.
        width: Pixels; 0 if they were not counted.
        height: Pixels; 0 if they were not counted.
        at: Its place in the message: how many characters of the content come before it. In a
            branch, how many tokens.
        data: Its bytes, or None if they are in a file. Not part of a trace.
        folder: The folder of the traces file that names it, or None. Not part of a trace.

    Raises:
        ValueError: If the hash is not 64 hexadecimal digits, or the type is another.
    """

    sha256: str
    media_type: str
    width: int = 0
    height: int = 0
    at: int = 0
    data: Annotated[bytes | None, Field(exclude=True)] = field(
        default=None, compare=False, repr=False
    )
    folder: Annotated[Path | None, Field(exclude=True)] = field(
        default=None, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        if self.media_type not in ENDINGS or not NAMED.fullmatch(self.name):
            raise ValueError(f"not an image: {self.media_type[:40]!r}, {self.sha256[:80]!r}")

    @classmethod
    def of(cls, value: object) -> Image:
        """Return an image.

        Args:
            value: Bytes, a ``Path``, a data URL, a Pillow image, a Matplotlib figure, or any other
                object that draws itself for notebooks.

        Raises:
            BadImage: If it is not a whole PNG, JPEG, WebP or GIF, is animated, or has more than
                20 MiB or 40 million pixels; or it is a URL that would have to be fetched.
            ConfigError: If Pillow is not installed.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            return _of_url(value)
        if isinstance(value, Path):
            return _of_bytes(_read_file(value))
        if isinstance(value, bytes | bytearray | memoryview):
            return _of_bytes(bytes(value))
        return _of_bytes(_drawn(value))

    @classmethod
    def named(cls, name: str, at: int = 0) -> Image:
        """Return the image of a file's name, whose content is nowhere yet.

        Raises:
            ValueError: If it is not the name of an image.
        """
        named = NAMED.fullmatch(name)
        if named is None:
            raise ValueError(f"not an image: {name[:80]!r}")
        return cls(named[1], TYPES[named[2]], at=at)

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"{self.sha256}.{ENDINGS[self.media_type]}"

    @property
    def tokens(self) -> int:
        """About how many tokens it is, where no model has counted them."""
        return max(85, self.width * self.height // _PIXELS_PER_TOKEN)

    def read(self) -> bytes:
        """Return its bytes.

        Raises:
            BadImage: If its file is missing or damaged; names the file.
        """
        if self.data is not None:
            return self.data
        if self.folder is None:
            raise BadImage(f"the image {self.name} was read without the folder of its trace")
        path = self.folder / FOLDER / self.name
        try:
            data = path.read_bytes()
        except OSError as error:
            raise BadImage(
                f"the image {path} of a trace cannot be read: {error.strerror}"
            ) from None
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise BadImage(f"the image {path} of a trace is damaged: its hash is another")
        return data

    def data_url(self) -> str:
        """Return it as a data URL.

        Raises:
            BadImage: If its file is missing or damaged.
        """
        return f"data:{self.media_type};base64,{base64.b64encode(self.read()).decode()}"

    def to_openai(self) -> dict[str, Any]:
        """Return it as a content part of OpenAI's chat format."""
        return {"type": "image_url", "image_url": {"url": self.data_url()}}


def placed(parts: Sequence[str | Image]) -> tuple[str, list[Image]]:
    """Return the text of parts, and the images with their places in it."""
    texts: list[str] = []
    images: list[Image] = []
    length = 0
    for part in parts:
        if isinstance(part, Image):
            images.append(replace(part, at=length))
        else:
            texts.append(part)
            length += len(part)
    return "".join(texts), images


def is_picture(value: object) -> bool:
    """Return whether a value is an image, or an object that draws itself as one."""
    drawn = hasattr(value, "_repr_png_") or hasattr(value, "savefig")
    return isinstance(value, Image) or (drawn and not isinstance(value, type))


def image_of(part: Mapping[str, Any]) -> Image | None:
    """Return the image of a content part, in the form of any API; None if its type is no image's.

    Read are ``image_url`` (Chat Completions), ``input_image`` (Responses), and ``image`` with a
    ``source`` (Anthropic), with ``data`` (MCP) or with an ``image`` (processors).

    Raises:
        BadImage: If it holds no image that can be read; see :meth:`Image.of`.
    """
    match part:
        case {"type": "image_url" | "input_image", "image_url": {"url": str(url)} | str(url)}:
            return _of_url(url)
        case {"type": "image", "source": {"type": "base64", "data": str(data)}}:
            return _of_bytes(decoded(data))
        case {"type": "image", "source": {"type": "url", "url": str(url)}}:
            return _of_url(url)
        case {"type": "image", "data": str(data)}:
            return _of_bytes(decoded(data))
        case {"type": "image", "image": value}:
            return Image.of(value)
        case {"type": "image_url" | "input_image" | "image" as kind}:
            raise BadImage(f"a part of type {kind!r} holds no image: send it as a data URL")
    return None


def _of_url(url: str) -> Image:
    if NAMED.fullmatch(url):  # in a task that was read from a trace
        return Image.named(url)
    if not url.startswith("data:"):
        raise BadImage(
            f"the image {url[:200]!r} is not fetched: send a data URL. For images of its tasks, an "
            "environment may set fetch_images = True"
        )
    head, comma, data = url.partition(",")
    if not comma or not head.endswith(";base64"):
        raise BadImage("an image's data URL must be data:image/png;base64,..., or of another type")
    return _of_bytes(decoded(data))


def decoded(data: str) -> bytes:
    """Return the bytes of base64.

    Raises:
        BadImage: If it is not base64, or holds more than 20 MiB.
    """
    if len(data) > MOST_BYTES // 3 * 4 + 4:
        raise _too_large(len(data) // 4 * 3)
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadImage(f"an image's base64 cannot be read: {error}") from None


def _read_file(path: Path) -> bytes:
    try:
        if (size := path.stat().st_size) > MOST_BYTES:
            raise _too_large(size)
        return path.read_bytes()
    except OSError as error:
        raise BadImage(f"the image {path} cannot be read: {error.strerror}") from None


def _drawn(value: Any) -> bytes:
    """Return the PNG that an object draws itself as."""
    out = io.BytesIO()
    module = sys.modules.get("PIL.Image")
    if module is not None and isinstance(value, module.Image):
        _check_pixels(*value.size)
        plain = (
            value if value.mode in ("1", "L", "LA", "P", "RGB", "RGBA") else value.convert("RGB")
        )
        plain.save(out, "PNG")
        return out.getvalue()
    if hasattr(value, "savefig"):
        value.savefig(out, format="png")
        return out.getvalue()
    drawn = value._repr_png_() if hasattr(value, "_repr_png_") else None
    if not isinstance(drawn, bytes):
        raise BadImage(f"{type(value).__name__} is not an image, and draws none")
    return drawn


def _of_bytes(data: bytes) -> Image:
    if len(data) > MOST_BYTES:
        raise _too_large(len(data))
    sha256 = hashlib.sha256(data).hexdigest()
    header = _checked.get(sha256)
    if header is None:
        if len(_checked) >= _KNOWN:
            _checked.clear()
        header = _checked[sha256] = _check(data)
    return Image(sha256, *header, data=data)


def _check(data: bytes) -> tuple[str, int, int]:
    """Return an image's media type, width and height, after all of it was decoded."""
    module = load("PIL.Image", "images")
    try:
        with module.open(io.BytesIO(data), formats=tuple(_FORMATS)) as opened:
            _check_pixels(*opened.size)
            if (frames := getattr(opened, "n_frames", 1)) > 1:
                raise BadImage(f"an image is animated, with {frames} frames: send one of them")
            opened.load()
            return _FORMATS[opened.format], *opened.size
    except BadImage:
        raise
    except module.DecompressionBombError:
        raise BadImage(f"an image has far more than {MOST_PIXELS:,} pixels") from None
    except module.UnidentifiedImageError:
        raise BadImage(
            "an image is not PNG, JPEG, WebP or GIF, or its beginning is broken"
        ) from None
    except Exception as error:  # a decoder may raise anything on broken data
        reason = f"{type(error).__name__}: {error}"[:200]
        raise BadImage(f"an image is broken: {reason}") from None


def _check_pixels(width: int, height: int) -> None:
    if width * height > MOST_PIXELS:
        raise BadImage(
            f"an image has {width} x {height} pixels; at most {MOST_PIXELS:,} are read: scale it"
        )


def _too_large(size: int) -> BadImage:
    return BadImage(f"an image has {size:,} bytes; at most {MOST_BYTES:,} are read: scale it")


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
    images: list[Image] = []
    if not isinstance(prompt, list):
        return prompt, images

    def named(part: Any) -> Any:
        match part:
            case {"type": "image_url", "image_url": {"url": str(url)} as inner}:
                image = _undecoded(url)
                if image is not None:
                    images.append(image)
                    return {**part, "image_url": {**inner, "url": f"{FOLDER}/{image.name}"}}
        return part

    return [
        {**entry, "content": [named(part) for part in entry["content"]]}
        if isinstance(entry, Mapping) and isinstance(entry.get("content"), list)
        else entry
        for entry in prompt
    ], images


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
