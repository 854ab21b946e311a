"""Where a context cannot grow, a new branch begins, is counted, and says why."""

from __future__ import annotations

import asyncio

import pytest

from tests.inference.chat_templates import FORGETS, STRICT, tokenizer
from tests.inference.token_talk import Turn, talk
from vf.inference.model import ContextFull, Conversation, Sampling
from vf.inference.models.token_model import TokenModel
from vf.inference.rendering.renderer import Renderer
from vf.inference.token_client import TokenClient
from vf.runtime.errors import ModelError
from vf.testing import FakeServer, Response
from vf.traces.messages import Message

# Renders whole conversations, but not the short closed one that the bridge is read from.
NO_BRIDGE = (
    "{%- if messages[0].content == '-' and messages | length > 3 %}"
    "{{- raise_exception('begin with more than a dash') }}{% endif %}" + STRICT
)
SHIPPED = Renderer(tokenizer())
YES = [*SHIPPED.tokenizer.encode("yes"), SHIPPED.closer_id]
FIRST = [Message("user", "x")]


def test_a_template_without_a_bridge_forks_every_turn_and_says_why() -> None:
    renderer = Renderer(tokenizer(FORGETS))
    turns = [Turn(YES, ["two"]), Turn(YES, ["three"]), Turn(YES)]
    spoken = asyncio.run(talk(renderer, FIRST, turns))
    forks = spoken.conversation.forks
    assert [(fork.turn, fork.reason) for fork in forks] == [
        (1, "the template does not show the last answer"),
        (2, "the template does not show the last answer"),
    ]
    branches = spoken.conversation.branches
    assert [branch.token_ids for branch in branches] == [p + YES for p in spoken.prompts]
    for turn, (branch, prompt) in enumerate(zip(branches, spoken.prompts, strict=True)):
        assert branch.loss_mask == [0] * len(prompt) + [1] * len(YES)
        assert set(branch.turn_index) == {turn}
    assert "three" in renderer.decode(spoken.prompts[2])


def test_a_rendering_that_happens_to_extend_the_context_is_no_fork() -> None:
    renderer = Renderer(tokenizer(NO_BRIDGE))
    spoken = asyncio.run(talk(renderer, FIRST, [Turn(YES, ["a", "b"]), Turn(YES)]))
    assert spoken.conversation.forks == []
    (branch,) = spoken.conversation.branches
    assert branch.token_ids[: len(spoken.prompts[0]) + len(YES)] == spoken.prompts[0] + YES
    assert spoken.prompts[1] == renderer.prompt(spoken.conversation.messages[:4], [])


def test_a_rendering_that_changes_sampled_ids_is_a_fork() -> None:
    renderer = Renderer(tokenizer(NO_BRIDGE))
    spelled = [*(i for letter in "yes" for i in renderer.tokenizer.encode(letter)), YES[-1]]
    assert spelled != YES
    assert renderer.decode(spelled) == renderer.decode(YES)
    spoken = asyncio.run(talk(renderer, FIRST, [Turn(spelled, ["a", "b"]), Turn(YES)]))
    (fork,) = spoken.conversation.forks
    assert fork.turn == 1
    assert "begin with more than a dash" in fork.reason
    assert spoken.conversation.branches[0].token_ids == spoken.prompts[0] + spelled
    assert spoken.conversation.branches[1].token_ids == spoken.prompts[1] + YES


def test_after_a_fork_the_new_branch_grows() -> None:
    renderer = Renderer(tokenizer(NO_BRIDGE))
    spelled = [*(i for letter in "yes" for i in renderer.tokenizer.encode(letter)), YES[-1]]
    turns = [Turn(spelled, ["a", "b"]), Turn(spelled, ["c"]), Turn(YES)]
    spoken = asyncio.run(talk(renderer, FIRST, turns))
    assert len(spoken.conversation.forks) == 1
    grown = spoken.prompts[1] + spelled
    assert spoken.prompts[2][: len(grown)] == grown
    assert spoken.conversation.branches[1].token_ids == spoken.prompts[2] + YES


def test_a_conversation_that_cannot_be_rendered_at_all_ends_only_its_rollout() -> None:
    renderer = Renderer(tokenizer(STRICT))
    conversation = Conversation(list(FIRST))

    async def run() -> None:
        spoken = await talk(renderer, FIRST, [Turn(YES)])
        conversation.branches, conversation.encoded = spoken.conversation.branches, 2
        conversation.messages = [*FIRST, spoken.replies[0].message, Message("tool", "?")]
        conversation.turn = 1
        client = TokenClient.to("http://127.0.0.1:1/v1", "tiny", max_retries=0)
        model = TokenModel(client, renderer, max_seq_len=1000)
        await model.respond(conversation, Sampling())

    with pytest.raises(ModelError, match=r"turn 1 cannot be rendered.*must follow a tool call"):
        asyncio.run(run())


@pytest.mark.parametrize("template", [None, FORGETS])
def test_a_turn_without_an_answer_leaves_no_tokens_behind(template: str | None) -> None:
    renderer = Renderer(tokenizer(template))

    async def run() -> None:
        spoken = await talk(renderer, FIRST, [Turn(YES, ["two"])])
        conversation = spoken.conversation
        held = [list(branch.token_ids) for branch in conversation.branches]
        async with FakeServer([Response("no", 400)]) as server:
            client = TokenClient.to(server.base_url, "tiny")
            full = TokenModel(client, renderer, max_seq_len=len(held[0]) + 1)
            failing = TokenModel(client, renderer, max_seq_len=1000)
            if template is None:
                with pytest.raises(ContextFull):
                    await full.respond(conversation, Sampling())
            with pytest.raises(ModelError, match="answered 400: no"):
                await failing.respond(conversation, Sampling())
            await client.close()
        assert [branch.token_ids for branch in conversation.branches] == held
        assert conversation.forks == []

    asyncio.run(run())
