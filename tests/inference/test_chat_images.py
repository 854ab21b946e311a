"""Images on their way to a chat API, and to models that cannot see."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

import vf
from tests.pictures import BLUE, image_url, png, text, url
from vf.inference.models.tool_images import images_behind
from vf.inference.rendering.text_tools import in_text
from vf.testing import FakeServer, Response

RED = vf.Image.of(png())
CALLS = [vf.ToolCall(f"c{n}", "zoom", "{}") for n in (1, 2)]
TALK = [
    vf.Message.of("user", ["What?", RED]),
    vf.Message("assistant", tool_calls=CALLS),
    vf.Message.of("tool", [vf.Image.of(png(BLUE))], tool_call_id="c1", name="zoom"),
    vf.Message.of("tool", ["It is ", RED, "."], tool_call_id="c2", name="zoom"),
]


def sent(talk: list[vf.Message], **settings: Any) -> list[dict[str, Any]]:
    """Return the messages that an API gets."""
    with FakeServer("Red.") as server:
        model = vf.ChatModel("fake", base_url=server.base_url, **settings)
        reply = asyncio.run(model.respond(vf.Conversation(talk), vf.Sampling()))
    assert reply.message.content == "Red."
    messages: list[dict[str, Any]] = server.bodies[0]["messages"]
    return messages


def test_tools_show_images_in_the_users_message_behind_their_results() -> None:
    asked, _, first, second, shown = sent(TALK)
    assert asked["content"] == [text("What?"), image_url(png())]
    assert (first["role"], first["content"]) == ("tool", "(an image, shown below)")
    assert (second["role"], second["content"]) == ("tool", "It is .")
    assert shown["role"] == "user"
    assert [part.get("text", part) for part in shown["content"]] == [
        "Shown by zoom (call c1):",
        image_url(png(BLUE)),
        "Shown by zoom (call c2):",
        image_url(png()),
    ]


def test_they_join_what_the_user_says_next_and_come_before_an_answer() -> None:
    more = [*TALK, vf.Message("user", "Well?"), vf.Message("assistant", "Red.")]
    out = images_behind(more, [message.to_openai() for message in more])
    assert [each["role"] for each in out] == [message.role for message in more]
    assert out[4]["content"][-1] == text("Well?")
    later = [*TALK, vf.Message("assistant", "Red.")]
    out = images_behind(later, [message.to_openai() for message in later])
    assert [each["role"] for each in out[3:]] == ["tool", "user", "assistant"]


def test_tools_in_text_keep_images_in_their_places() -> None:
    *_, last = in_text(TALK, [])
    assert [part if isinstance(part, str) else part.name for part in last.parts] == [
        "<tool_response>\n",
        vf.Image.of(png(BLUE)).name,
        "\n</tool_response>\n<tool_response>\nIt is ",
        RED.name,
        ".\n</tool_response>",
    ]
    assert [part["type"] for part in sent(TALK, tool_style="text")[-1]["content"]] == [
        *("text", "image_url", "text", "image_url", "text")
    ]


def test_no_error_and_no_log_repeats_an_image(caplog: pytest.LogCaptureFixture) -> None:
    large = vf.Image.of(png(size=(3000, 3000)))
    data = url(large.read())
    assert len(data) > 5000
    answers = [Response({"error": {"message": f"bad input: {data}"}}, status=n) for n in (503, 400)]
    with FakeServer(answers) as server, caplog.at_level(logging.DEBUG):
        model = vf.ChatModel("fake", base_url=server.base_url)
        asked = vf.Conversation([vf.Message.of("user", [large])])
        with pytest.raises(vf.VfError, match="bad input: data:image/png;base64,iVBO") as caught:
            asyncio.run(model.respond(asked, vf.Sampling()))
    assert len(server.requests) == 2
    assert len(str(caught.value)) < 300
    assert data[100:400] not in caplog.text
