"""Agents' requests with images, in each dialect."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

import vf
from tests.inference.endpoint.rollout_talk import opened
from tests.inference.endpoint.test_refusals import post
from tests.pictures import BLUE, image_url, png, url

RED_PART = image_url(png())
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def block(data: bytes) -> dict[str, Any]:
    """Return an image of Anthropic's."""
    raw = base64.b64encode(data).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": raw}}


def shown(data: bytes) -> dict[str, Any]:
    """Return an image of the Responses API."""
    return {"type": "input_image", "image_url": url(data), "detail": "auto"}


TALKS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "What?"}, RED_PART]},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": [image_url(png(BLUE))]},
        ]
    },
    "/v1/responses": {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "What?"}, shown(png())]},
            {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": [shown(png(BLUE))]},
        ]
    },
    "/v1/messages": {
        "max_tokens": 9,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "What?"}, block(png())]},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "c1", "name": "look", "input": {}}],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": [block(png(BLUE))]}
                ],
            },
        ],
    },
}


@pytest.mark.parametrize("path", TALKS)
def test_images_of_every_dialect_become_the_same_messages(path: str) -> None:
    async def run() -> None:
        async with opened(vf.ScriptedModel(["Red."])) as (session, _, trace):
            endpoint = session.endpoint
            body = {"model": "policy", **TALKS[path]}
            status, answer = await post(f"{endpoint.root}{path}", body, endpoint.key)
            assert status == 200, answer
        asked, called, result, _ = trace.messages
        assert [part if isinstance(part, str) else part.read() for part in asked.parts] == [
            "What?",
            png(),
        ]
        assert called.tool_calls[0].name == "look"
        assert [image.read() for image in result.images] == [png(BLUE)]

    asyncio.run(run())


def test_what_cannot_be_seen_is_refused_and_counted_without_its_bytes() -> None:
    async def run() -> None:
        async with opened(vf.ScriptedModel(["Red."])) as (session, _, trace):
            endpoint = session.endpoint
            for part, problem in (
                (image_url(png()[:40]), "messages[0]: an image is not PNG, JPEG, WebP or GIF"),
                (
                    {"type": "image_url", "image_url": {"url": "http://10.0.0.1/x.png"}},
                    "messages[0]: the image 'http://10.0.0.1/x.png' is not fetched",
                ),
            ):
                body = {"model": "policy", "messages": [{"role": "user", "content": [part]}]}
                status, answer = await post(
                    f"{endpoint.root}/v1/chat/completions", body, endpoint.key
                )
                assert status == 400
                assert answer["error"]["message"].startswith(problem)
            large = block(png(size=(1500, 1000)))
            body = {"model": "policy", "messages": [{"role": "user", "content": [large]}]}
            status, answer = await post(
                f"{endpoint.root}/v1/messages/count_tokens", body, endpoint.key
            )
            assert (status, answer["input_tokens"] // 100) == (200, 20)
            assert not trace.turns

    asyncio.run(run())
