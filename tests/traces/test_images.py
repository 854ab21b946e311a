"""Images: one form, their places, their limits, and the files beside a traces file."""

from __future__ import annotations

import base64
import io
import json
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest
from PIL import Image as Pillow

import vf
from tests.pictures import BLUE, RED, animated, image_url, png, text, url
from vf.traces.export.openai_chat import chat_lines, read_chat
from vf.traces.export.parquet import ParquetTraces, read_parquet
from vf.traces.image_files import find_image
from vf.traces.images import MOST_BYTES, BadImage, image_of
from vf.traces.trace import Lineage

RAW = base64.b64encode(png()).decode()


def noise() -> bytes:
    out = io.BytesIO()
    Pillow.effect_noise((100, 100), 50).save(out, "PNG")
    return out.getvalue()


class Draws:
    """What a notebook would show."""

    def _repr_png_(self) -> bytes:
        return png()


def a_trace(*contents: Any, prompt: Any = "p") -> vf.Trace:
    trace = vf.Trace("e", vf.Task("t", prompt), seed=0)
    trace.messages = [vf.Message("user", content) for content in contents]
    return trace


@pytest.mark.parametrize(
    "part",
    [
        image_url(png()),
        {"type": "image_url", "image_url": url(png())},
        {"type": "input_image", "image_url": url(png()), "detail": "high"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": RAW}},
        {"type": "image", "data": RAW, "mimeType": "image/png"},
        {"type": "image", "image": Pillow.new("RGB", (4, 2), RED)},
        Pillow.new("CMYK", (4, 2)).convert("RGB"),
        Draws(),
        vf.Image.of(png()),
    ],
)
def test_an_image_of_any_api_has_one_form(part: Any) -> None:
    content: Any = ["a", part, text("b")]
    message = vf.Message("user", content)
    [image] = message.images
    assert (message.content, image.at, image.media_type) == ("ab", 1, "image/png")
    assert (image.width, image.height) == (4, 2)
    assert vf.Message.from_openai(message.to_openai()) == message
    assert "iVBO" not in repr(message)  # no base64, and no bytes, in whatever prints it


def test_places_are_kept_between_texts() -> None:
    red, blue = vf.Image.of(png()), vf.Image.of(png(BLUE))
    content: Any = [red, "one 🙂", blue, red, "two"]
    message = vf.Message("user", content)
    assert [image.at for image in message.images] == [0, 5, 5]
    named = [part if isinstance(part, str) else part.sha256 for part in message.parts]
    assert named == [red.sha256, "one 🙂", blue.sha256, red.sha256, "two"]
    assert vf.Message("user", "text").parts == ["text"]


def bomb(width: int, height: int) -> bytes:
    """Return a small PNG that claims to be large."""
    data = png()
    head = struct.pack(">II", width, height) + data[24:29]
    return data[:16] + head + struct.pack(">I", zlib.crc32(b"IHDR" + head)) + data[33:]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (noise()[:5000], "is broken: .*truncated"),
        (b"GIF89a" + bytes(50), "is broken|beginning is broken"),
        (b"%PDF-1.7", "is not PNG, JPEG, WebP or GIF"),
        (animated(), "is animated, with 2 frames"),
        (bomb(20_000, 20_000), "far more than 40,000,000 pixels"),
        (bomb(6_400, 6_400), "has 6400 x 6400 pixels; at most 40,000,000"),
        (bytes(MOST_BYTES + 1), r"has 20,971,521 bytes; at most 20,971,520"),
        (Pillow.new("1", (8_000, 8_000)), "has 8000 x 8000 pixels"),
        ("https://example.org/a.png", r"is not fetched: .*fetch_images = True"),
        ("data:image/png,abc", "must be data:image/png;base64"),
        ("data:image/png;base64,????", "base64 cannot be read"),
        ("data:image/png;base64," + "A" * (MOST_BYTES * 4 // 3 + 8), "bytes; at most"),
        (Path("/nowhere/a.png"), "/nowhere/a.png cannot be read: No such file"),
        (object(), "object is not an image"),
    ],
)
def test_what_is_beyond_a_limit_or_broken_is_named(value: Any, problem: str) -> None:
    with pytest.raises(BadImage, match=problem) as caught:
        vf.Image.of(value)
    assert len(str(caught.value)) < 400


def test_parts_without_an_image_and_roles_without_eyes_are_refused() -> None:
    for part in ({"type": "input_image", "file_id": "f"}, {"type": "image", "source": {}}):
        with pytest.raises(BadImage, match="holds no image"):
            image_of(part)
    with pytest.raises(vf.ConfigError, match="role 'assistant' cannot hold images"):
        vf.Message("assistant", [image_url(png())])  # type: ignore[arg-type]


def test_a_trace_names_its_images_and_the_store_keeps_each_once(tmp_path: Path) -> None:
    red, blue = png(), png(BLUE)
    prompt = [{"role": "user", "content": ["What?", vf.Image.of(red)]}]
    trace = a_trace([image_url(red)], ["a", image_url(blue)], [image_url(red)], prompt=prompt)
    trace.messages[-1].raw = {"of": "an API"}
    trace.lineages = [Lineage(trace.messages, prompt_messages=3)]
    with vf.TraceStore(tmp_path / "traces.jsonl") as store:
        store.append(trace)
        store.append(trace)
    line = (tmp_path / "traces.jsonl").read_text().splitlines()[0]
    assert "base64" not in line
    assert "an API" not in line
    names = sorted(path.name for path in (tmp_path / "images").iterdir())
    assert names == sorted({image.name for image in trace.images})
    assert len(names) == 2
    read, _ = vf.TraceStore(tmp_path / "traces.jsonl")
    assert read.lineages == trace.lineages
    assert read.messages == trace.messages
    assert [image.read() for image in read.messages[1].images] == [blue]
    assert isinstance(read.task.prompt, list)
    part = read.task.prompt[0]["content"][1]
    assert part["image_url"]["url"] == f"images/{vf.Image.of(red).name}"
    assert vf.Message.from_openai(read.task.prompt[0]).images[0].sha256 == vf.Image.of(red).sha256
    assert read.copy().messages[0].images[0].read() == red


def test_copies_take_images_along_and_name_what_is_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with vf.TraceStore(tmp_path / "one" / "traces.jsonl") as store:
        store.append(a_trace([image_url(png())], [image_url(png(BLUE))]))
    [trace] = vf.TraceStore(tmp_path / "one" / "traces.jsonl")
    kept, lost = trace.images
    path = tmp_path / "one" / "images" / lost.name
    path.unlink()
    with vf.TraceStore(tmp_path / "two" / "traces.jsonl") as store:
        store.append(trace)
    assert [path.name for path in (tmp_path / "two" / "images").iterdir()] == [kept.name]
    assert str(path) in caplog.text
    with pytest.raises(BadImage, match=re.escape(str(path))):
        lost.read()
    path.write_bytes(b"other")
    with pytest.raises(BadImage, match=r"is damaged: its hash is another"):
        lost.read()
    line = json.loads((tmp_path / "one" / "traces.jsonl").read_text())
    for changed in ({"sha256": "../" * 21 + "x"}, {"media_type": "text/html"}):
        image = line["messages"][0]["images"][0]
        with pytest.raises(ValueError, match="not an image"):
            vf.Trace.from_json(
                json.dumps(
                    line | {"messages": [{"role": "user", "images": [{**image, **changed}]}]}
                )
            )


def test_only_files_of_images_are_found(tmp_path: Path) -> None:
    store = vf.TraceStore(tmp_path / "traces.jsonl")
    with store:
        store.append(a_trace([image_url(png())]))
    name = vf.Image.of(png()).name
    assert find_image(name, [store.path]) == (tmp_path / "images" / name, "image/png")
    for wrong in ("../traces.jsonl", f"images/{name}", name.upper(), "0" * 64 + ".png"):
        assert find_image(wrong, [store.path]) is None


def test_exports_carry_images(tmp_path: Path) -> None:
    trace = a_trace(["What?", image_url(png())])
    [line] = chat_lines(trace)
    assert line["messages"][0]["content"][1] == image_url(png())
    again = read_chat(json.loads(json.dumps(line)), 1)
    assert again is not None
    assert again.messages == trace.messages
    assert [image.read() for image in again.images] == [png()]
    with ParquetTraces(tmp_path / "t.parquet") as file:
        file.append(trace, "")
    [read] = read_parquet(tmp_path / "t.parquet")
    assert read.messages == trace.messages
    assert [image.read() for image in read.images] == [png()]


def test_pictures_in_a_task_are_data_urls() -> None:
    whole = Pillow.new("RGB", (4, 2), RED)
    task = vf.Task("t", [{"role": "user", "content": ["What?", whole]}])
    assert isinstance(task.prompt, list)
    assert json.loads(json.dumps(task.prompt))[0]["content"][0] == text("What?")
    assert vf.Message.from_openai(task.prompt[0]).images[0].width == 4
    with pytest.raises(BadImage, match="has 9000 x 9000 pixels"):
        vf.Task("t", [{"role": "user", "content": [Pillow.new("1", (9000, 9000))]}])
