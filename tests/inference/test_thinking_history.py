"""Reasoning stays in the context, or is shown again as the deployed template would show it."""

from __future__ import annotations

import asyncio

import pytest

from tests.inference.chat_templates import LLAMA, STRIPS_THINKING, tokenizer
from vf.inference.completions import Completion
from vf.inference.model import Conversation, Sampling
from vf.inference.models.token_model import TokenModel
from vf.inference.rendering.next_prompt import ThinkingHistory
from vf.inference.rendering.renderer import Renderer
from vf.runtime.errors import ModelError
from vf.traces.messages import Message

STRIPS = Renderer(tokenizer(STRIPS_THINKING))
THOUGHT = "<think>\nsecret\n</think>\n\nyes<|im_end|>"


class Sampler:
    """Samples what the test chose, and remembers the prompts."""

    def __init__(self, renderer: Renderer, texts: list[str]) -> None:
        self.answers = [renderer.template.encode(text) for text in texts]
        self.prompts: list[list[int]] = []

    async def complete(
        self,
        prompt_ids: list[int],
        sampling: Sampling,
        stop_token_ids: list[int],
        conversation: str = "",
    ) -> Completion:
        self.prompts.append(prompt_ids)
        ids = self.answers[len(self.prompts) - 1]
        return Completion(ids, [-0.5] * len(ids), [0] * len(ids), "stop")


def talk(
    renderer: Renderer, texts: list[str], said: list[Message], history: ThinkingHistory
) -> tuple[Conversation, Sampler]:
    sampler = Sampler(renderer, texts)
    model = TokenModel(sampler, renderer, max_seq_len=1000, thinking_history=history)
    conversation = Conversation([Message("user", "x")])
    for message in said:
        reply = asyncio.run(model.respond(conversation, Sampling()))
        conversation.messages += [reply.message, message]
        conversation.turn += 1
    return conversation, sampler


NEXT = [Message("user", "and?"), Message("user", "and then?"), Message("user", "done")]


def test_keep_never_drops_what_was_sampled() -> None:
    conversation, sampler = talk(STRIPS, [THOUGHT] * 3, NEXT, "keep")
    assert conversation.forks == []
    assert STRIPS.decode(sampler.prompts[2]).count("secret") == 2


def test_template_shows_what_the_template_shows_and_forks_where_that_rewrites_history() -> None:
    conversation, sampler = talk(STRIPS, [THOUGHT] * 3, NEXT, "template")
    assert [fork.turn for fork in conversation.forks] == [1, 2]
    for prompt, told in zip(sampler.prompts, (1, 3, 5), strict=True):
        assert prompt == STRIPS.prompt(conversation.messages[:told], [])
        assert "secret" not in STRIPS.decode(prompt)
    place = len(sampler.prompts[0])
    assert f"rewrites history, at token {place}: " in conversation.forks[0].reason
    assert "secret" in conversation.forks[0].reason
    branches = [branch.token_ids for branch in conversation.branches]
    assert branches == [p + a for p, a in zip(sampler.prompts, sampler.answers, strict=True)]


def test_template_gives_the_template_the_reasoning_to_decide_on() -> None:
    call = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    called = f"<think>\nsecret\n</think>\n\n{call}<|im_end|>"
    said = [Message("tool", "7", tool_call_id="call_0_0", name="add"), *NEXT[:2]]
    _, sampler = talk(STRIPS, [called, "It is 7.<|im_end|>", "yes<|im_end|>"], said, "template")
    # Behind the last question the reasoning is shown again; before it, it is not.
    assert "secret" in STRIPS.decode(sampler.prompts[1])
    assert "secret" not in STRIPS.decode(sampler.prompts[2])


def test_template_grows_where_the_template_extends() -> None:
    conversation, sampler = talk(STRIPS, ["yes<|im_end|>"] * 3, NEXT, "template")
    assert conversation.forks == []
    (branch,) = conversation.branches
    assert branch.token_ids == sampler.prompts[2] + sampler.answers[2]


def test_template_ends_the_rollout_where_the_template_refuses() -> None:
    renderer = Renderer(tokenizer(LLAMA))
    calls = '<tool_call>{"name": "add"}</tool_call>' * 2 + "<|eot_id|>"
    said = [Message("tool", "7", tool_call_id="call_0_0"), NEXT[0]]
    assert talk(renderer, [calls, "yes<|eot_id|>"], said, "keep")[0].forks == []
    # The parser of the template's family finds no calls in the Hermes form.
    renderer.parser = STRIPS.parser
    with pytest.raises(ModelError, match=r"turn 1 cannot be rendered.*one call at a time"):
        talk(renderer, [calls, "yes<|eot_id|>"], said, "template")
