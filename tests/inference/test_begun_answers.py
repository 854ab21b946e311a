"""A conversation that ends with the assistant's words: the model continues them in its turn."""

from __future__ import annotations

import asyncio

import pytest

from tests.inference.chat_templates import (
    HIDES_TOOLS,
    LLAMA,
    OPENS_THINKING,
    STRICT,
    STRIPS_THINKING,
    tokenizer,
)
from tests.inference.token_talk import Turn, talk
from vf.inference.model import Conversation
from vf.inference.rendering.next_prompt import Unrenderable, next_prompt
from vf.inference.rendering.renderer import BridgeError, Renderer
from vf.runtime.errors import ConfigError
from vf.traces.messages import Message, ToolCall

SHIPPED = Renderer(tokenizer())
ASKED, BEGUN = Message("user", "How many?"), Message("assistant", "The number is ")
CALL = ToolCall("c0", "add", "{}")


@pytest.mark.parametrize(
    "template", [None, LLAMA, STRICT, STRIPS_THINKING, OPENS_THINKING, HIDES_TOOLS]
)
def test_a_begun_answer_is_left_open(template: str | None) -> None:
    renderer = Renderer(tokenizer(template))
    shown = renderer.decode(renderer.prompt([ASKED, BEGUN], []))
    assert shown.endswith("The number is ")
    assert shown.startswith(renderer.decode(renderer.prompt([ASKED], []))[:-20])
    bridge = renderer.bridge(Message("assistant", "5"), [ASKED, BEGUN], [], renderer.closer_id)
    assert renderer.decode(bridge).endswith("The number is ")


def test_what_is_sampled_continues_the_turn() -> None:
    ids = [*SHIPPED.template.encode_after("5."), SHIPPED.closer_id]
    held = asyncio.run(talk(SHIPPED, [ASKED, BEGUN], [Turn(ids, ["And now?"]), Turn(ids)]))
    (branch,) = held.conversation.branches
    text = SHIPPED.decode(branch.token_ids)
    turn = "<|im_start|>assistant\nThe number is 5.<|im_end|>"
    assert turn in text
    assert text.count("<|im_start|>assistant") == 2
    sampled = [i for i, learn in zip(branch.token_ids, branch.loss_mask, strict=True) if learn]
    assert sampled == ids + ids
    assert held.replies[0].message.content == "5."


def test_an_answer_with_nothing_after_it_is_followed_by_another() -> None:
    ids = [*SHIPPED.template.encode_after("5."), SHIPPED.closer_id]
    held = asyncio.run(talk(SHIPPED, [ASKED], [Turn(ids), Turn(ids)]))
    (branch,) = held.conversation.branches
    turn = "<|im_start|>assistant\n5.<|im_end|>"
    assert SHIPPED.decode(branch.token_ids).endswith(f"{turn}\n{turn}")


def test_an_answer_that_was_cut_off_is_continued() -> None:
    cut, rest = SHIPPED.template.encode_after("It is 12"), SHIPPED.template.encode_after("345.")
    turns = [Turn(cut, finish_reason="length"), Turn([*rest, SHIPPED.closer_id])]
    held = asyncio.run(talk(SHIPPED, [ASKED], turns))
    (branch,) = held.conversation.branches
    text = SHIPPED.decode(branch.token_ids)
    assert text.endswith("<|im_start|>assistant\nIt is 12345.<|im_end|>")


def test_a_begun_answer_without_words_is_the_models_turn() -> None:
    assert SHIPPED.prompt([ASKED, Message("assistant")], []) == SHIPPED.prompt([ASKED], [])


def test_reasoning_may_be_opened() -> None:
    prompt = SHIPPED.prompt([ASKED, Message("assistant", "<think>\n")], [])
    assert SHIPPED.opens_reasoning(prompt)


@pytest.mark.parametrize(
    ("begun", "held"),
    [
        (Message("assistant", tool_calls=[CALL]), "holds a tool call"),
        (Message("assistant", '<tool_call>{"name": "add"}</tool_call>'), "holds a tool call"),
        (Message("assistant", "5", reasoning="Hm."), "holds reasoning"),
        (Message("assistant", "<think>\nHm"), "holds reasoning"),
    ],
)
def test_what_cannot_be_continued_is_refused(begun: Message, held: str) -> None:
    with pytest.raises(ConfigError, match=f"{held}.*end with the message of a user"):
        SHIPPED.prompt([ASKED, begun], [])
    with pytest.raises(BridgeError, match=held):
        SHIPPED.bridge(Message("assistant", "5"), [ASKED, begun], [], SHIPPED.closer_id)
    conversation = Conversation([ASKED])
    branch, context, _ = next_prompt(SHIPPED, conversation)
    branch.add_context([*context, SHIPPED.closer_id], 0)
    conversation.branches.append(branch)
    conversation.messages += [Message("assistant", ""), begun]
    conversation.encoded, conversation.turn = 2, 1
    with pytest.raises(Unrenderable, match=held):
        next_prompt(SHIPPED, conversation)


def test_a_template_that_changes_the_words_is_refused() -> None:
    upper = HIDES_TOOLS.replace("m.content", "(m.content | upper)")
    with pytest.raises(ConfigError, match="does not show the beginning of the last answer"):
        Renderer(tokenizer(upper)).prompt([ASKED, BEGUN], [])
