"""Images that are sent beside token ids to servers, which process them themselves."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image as Pillow

import vf
from tests.inference.vision_models import picture, save_family
from vf.inference.completions import generate_wire, openai_wire
from vf.inference.model import ContextFull, Sampling
from vf.inference.model_files import Checkpoint
from vf.inference.models.local_model import load_renderer
from vf.inference.rendering.renderer import Renderer
from vf.inference.rendering.vision import SERVED, Vision, images_of
from vf.inference.serving import Served
from vf.inference.settings import VllmSettings
from vf.inference.vllm.admin import Admin, check_images
from vf.inference.wire import JsonClient
from vf.runtime.errors import ConfigError, ModelError
from vf.testing import FakeServer, Request, Response
from vf.traces.images import Image
from vf.traces.messages import Message


def sideways() -> Image:
    """Return a transparent picture that its EXIF data turn."""
    image = Pillow.new("RGBA", (40, 24), (200, 30, 90, 128))
    image.paste((10, 250, 5, 255), (0, 0, 9, 9))
    turned = Pillow.Exif()
    turned[0x0112] = 6
    with io.BytesIO() as file:
        image.save(file, "PNG", exif=turned)
        return vf.Image.of(file.getvalue())


SHOWN = [picture(1), picture(2, 56, 40), sideways()]


def seeing(family: str, folder: Path) -> tuple[Renderer, Vision]:
    """Return a family's renderer and vision."""
    if family == "smolvlm":
        pytest.importorskip("num2words")  # its processor asks for it
    save_family(family, folder)
    renderer = load_renderer(Checkpoint.find(str(folder)), VllmSettings(), sees=True)
    assert renderer.vision is not None
    return renderer, renderer.vision


def prompt(
    renderer: Renderer, vision: Vision, images: list[Image]
) -> tuple[list[int], list[Image]]:
    """Return a prompt that shows images, and these with their places in it."""
    parts = [part for image in images for part in ("And this? ", image)]
    message = Message.of("user", parts)
    ids = renderer.prompt([message], [])
    return ids, vision.placed(ids, images_of([message]), 0)


def decoded(url: str) -> Any:
    return Pillow.open(io.BytesIO(base64.b64decode(url.removeprefix("data:image/png;base64,"))))


@pytest.mark.parametrize("family", SERVED)
def test_a_server_with_the_models_processor_makes_of_it_what_we_made(
    family: str, tmp_path: Path
) -> None:
    renderer, vision = seeing(family, tmp_path)
    ids, images = prompt(renderer, vision, SHOWN)
    tokens, parts = vision.as_sent(ids, images)
    assert [part["uuid"] for part in parts] == [image.sha256 for image in SHOWN]
    pictures = [decoded(part["url"]) for part in parts]
    assert {opened.mode for opened in pictures} == {"RGB"}
    # What the server does: each mark becomes the processor's text, each picture its tensors.
    text = renderer.tokenizer.decode(tokens)
    made = vision.processor(images=[pictures], text=[text], return_tensors="pt")
    assert made["input_ids"][0].tolist() == ids
    for image, opened in zip(images, pictures, strict=True):
        theirs = vision.processor(images=[opened], text=[vision.mark], return_tensors="pt")
        assert torch.equal(vision.pixels(image).inputs["pixel_values"], theirs["pixel_values"])


def test_nothing_is_left_to_resize(tmp_path: Path) -> None:
    renderer, vision = seeing("qwen2_5_vl", tmp_path)
    _, parts = vision.as_sent(*prompt(renderer, vision, [picture(2, 56, 40)]))
    assert decoded(parts[0]["url"]).size == (64, 32)


def test_a_placeholder_that_was_sampled_before_an_image_ends_the_context(tmp_path: Path) -> None:
    renderer, vision = seeing("qwen3_vl", tmp_path)
    ids, [image] = prompt(renderer, vision, SHOWN[:1])
    tokens, _ = vision.as_sent([*ids, vision.token_id], [image])
    assert tokens.count(vision.token_id) == 2  # a server reads as many as there are images
    moved = Image(image.sha256, image.media_type, at=image.at + 1, data=image.data)
    with pytest.raises(ContextFull):
        vision.as_sent([vision.token_id, *ids], [moved])
    with pytest.raises(ConfigError, match="is not where its trace has it"):
        vision.as_sent(ids, [moved])


def answer(prompt_ids: Any) -> dict[str, Any]:
    choice = {
        "token_ids": [5],
        "logprobs": {"content": [{"logprob": -1.0}]},
        "weight_versions": None,
        "finish_reason": "stop",
    }
    return {"choices": [choice], "prompt_token_ids": prompt_ids}


def test_the_tokens_that_a_server_makes_are_compared(tmp_path: Path) -> None:
    renderer, vision = seeing("qwen2_5_vl", tmp_path)
    ids, images = prompt(renderer, vision, SHOWN)
    sampling = Sampling(1, images=tuple(images))

    async def ask(theirs: Any, seen: Vision | None = vision) -> tuple[list[int], Any]:
        wire = partial(generate_wire, vision=seen, versions_told=False)
        async with FakeServer(Response(answer(theirs))) as server:
            client = JsonClient(server.base_url.removesuffix("/v1"), max_retries=0)
            try:
                made = await wire(client, Served("m", version=9), ids, sampling, [0])
            finally:
                await client.close()
        return made.versions, server.bodies[0]

    versions, body = asyncio.run(ask(ids))
    tokens, parts = vision.as_sent(ids, images)
    assert versions == [9]
    assert (body["token_ids"], body["content_parts"]) == (tokens, json.loads(json.dumps(parts)))
    for theirs in (ids[1:], None):
        with pytest.raises(ModelError, match="makes other tokens of the prompt's images"):
            asyncio.run(ask(theirs))
    with pytest.raises(ModelError, match="it was started without them"):
        asyncio.run(ask(ids, None))
    with pytest.raises(ModelError, match="are not sent to servers that speak OpenAI's API"):
        asyncio.run(openai_wire(JsonClient("http://127.0.0.1:9"), Served("m"), ids, sampling, []))


@pytest.mark.parametrize(
    ("respond", "said"),
    [
        (lambda ids: Response({"detail": "Not Found"}, status=404), "--enable-scale-out"),
        (lambda ids: Response(answer([*ids, 1])), "makes 13 tokens of a test picture where"),
        (lambda ids: Response({"choices": []}), "does not tell a prompt's token ids"),
    ],
)
def test_a_server_that_sees_otherwise_is_refused_at_the_start(
    respond: Callable[[list[int]], Response], said: str, tmp_path: Path
) -> None:
    _, vision = seeing("qwen2_5_vl", tmp_path)

    def reply(request: Request) -> Response:
        [part] = request.body["content_parts"]
        made = vision.processor(
            images=[decoded(part["url"])],
            text=[vision.processor.tokenizer.decode(request.body["token_ids"])],
        )
        return respond([int(token) for token in made["input_ids"][0]])

    def ask(served: Callable[[Request], Response]) -> None:
        with FakeServer(served) as server:
            admin = Admin(server.base_url)
            try:
                check_images(admin, "m", vision)
            finally:
                admin.close()

    with pytest.raises(ConfigError, match=said):
        ask(reply)


def test_a_family_that_vllm_reads_otherwise_is_refused_by_name(tmp_path: Path) -> None:
    save_family("gemma3", tmp_path)
    with pytest.raises(ConfigError, match=r"gemma3, of which no images are read by a vLLM server"):
        load_renderer(Checkpoint.find(str(tmp_path)), VllmSettings(), sees=True)
