"""What a TokenModel asks for, and which answers it refuses."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.inference.chat_templates import tokenizer
from tests.inference.token_talk import Turn, talk
from vf.inference.experts import encode_experts
from vf.inference.model import ContextFull, Conversation, Reply, Sampling
from vf.inference.models.token_model import PromptTooLong, TokenModel
from vf.inference.rendering.renderer import Renderer
from vf.inference.token_client import TokenClient
from vf.runtime.errors import ModelError
from vf.testing import FakeServer, completion
from vf.traces.messages import Message

RENDERER = Renderer(tokenizer(), stop_token_ids=[0])
FIRST = [Message("user", "x")]
PROMPT = RENDERER.prompt(FIRST, [])


def ask(
    sampling: Sampling | None = None, *, changes: dict[str, Any] | None = None, **limits: Any
) -> tuple[Conversation, list[dict[str, Any]]]:
    """Respond once; return the conversation and the request bodies."""

    async def run() -> tuple[Conversation, list[dict[str, Any]]]:
        conversation = Conversation(list(FIRST))
        async with FakeServer([completion([5, 6, 2], **changes or {})]) as server:
            client = TokenClient.to(server.base_url, "m", max_retries=0)
            model = TokenModel(client, RENDERER, **{"max_seq_len": 1000} | limits)
            try:
                await model.respond(conversation, sampling or Sampling())
            finally:
                await client.close()
        return conversation, server.bodies

    return asyncio.run(run())


def test_a_plain_request_leaves_no_default_to_the_server() -> None:
    _, (body,) = ask(Sampling(max_tokens=9, temperature=0.7))
    assert body == {
        "model": "m",
        "prompt": PROMPT,
        "max_tokens": 9,
        "temperature": 0.7,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0,
        "frequency_penalty": 0,
        "logprobs": 0,
        "return_token_ids": True,
        "stop_token_ids": [0, 2],
    }


def test_every_sampling_parameter_is_sent() -> None:
    wanted = {"top_p": 0.9, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.2, "seed": 3}
    _, (body,) = ask(Sampling(**wanted))  # type: ignore[arg-type]
    assert {name: body[name] for name in wanted} == wanted


def test_texts_to_stop_at_are_sent_and_must_be_among_the_ids() -> None:
    _, (body,) = ask(Sampling(stop=("END", "\n\n")))
    assert body["stop"] == ["END", "\n\n"]
    assert body["include_stop_str_in_output"] is True


@pytest.mark.parametrize("behind", ["", " and more.", " and more. Observation: again"])
def test_an_answer_ends_with_the_token_that_completes_the_first_stop_text(behind: str) -> None:
    ids = RENDERER.tokenizer.encode(f"One. Observation: two{behind}")
    logprobs = [-1.0 - place for place in range(len(ids))]
    changes = {
        "token_ids": ids,
        "logprobs": {"token_logprobs": logprobs},
        "weight_versions": [*range(len(ids))],
    }
    conversation, _ = ask(Sampling(stop=("two", "vation:")), changes=changes)
    (branch,) = conversation.branches
    count = sum(branch.loss_mask)
    assert branch.token_ids[-count:] == ids[:count]
    assert branch.logprobs[-count:] == logprobs[:count]
    assert branch.weight_version[-count:] == [*range(count)]
    assert "vation:" in RENDERER.decode(ids[:count])
    assert "vation:" not in RENDERER.decode(ids[: count - 1])


def test_the_message_ends_before_the_stop_text_and_says_which_it_was() -> None:
    ids = RENDERER.tokenizer.encode("One. Observation: two")
    script = [completion(ids, "length")]

    async def run() -> Reply:
        async with FakeServer(script) as server:
            client = TokenClient.to(server.base_url, "m", max_retries=0)
            model = TokenModel(client, RENDERER, max_seq_len=1000)
            reply = await model.respond(Conversation(list(FIRST)), Sampling(stop=("Obs", "two")))
            await client.close()
        return reply

    reply = asyncio.run(run())
    assert (reply.message.content, reply.finish_reason, reply.stop) == ("One.", "stop", "Obs")
    assert reply.completion_tokens < len(ids)


def test_max_tokens_never_exceeds_the_room_left() -> None:
    _, (body,) = ask(Sampling(max_tokens=100), max_seq_len=len(PROMPT) + 7)
    assert body["max_tokens"] == 7


def test_a_full_context_is_not_asked() -> None:
    with pytest.raises(ContextFull):
        ask(max_seq_len=len(PROMPT))


def test_a_first_prompt_over_its_limit_is_named() -> None:
    assert ask(max_prompt_len=len(PROMPT))[0].branches[0].token_ids[: len(PROMPT)] == PROMPT
    with pytest.raises(PromptTooLong, match=f"has {len(PROMPT)} tokens, over max_prompt_len"):
        ask(max_prompt_len=len(PROMPT) - 1)


def test_the_prompt_limit_holds_for_the_first_prompt_only() -> None:
    async def run() -> int:
        spoken = await talk(RENDERER, FIRST, [Turn([5, 2], ["more"])])
        conversation = spoken.conversation
        async with FakeServer([completion([5, 2])]) as server:
            client = TokenClient.to(server.base_url, "m")
            model = TokenModel(client, RENDERER, max_seq_len=1000, max_prompt_len=len(PROMPT))
            reply = await model.respond(conversation, Sampling())
            await client.close()
        return reply.prompt_tokens

    assert asyncio.run(run()) > len(PROMPT)


def test_the_reply_counts_tokens_and_tells_how_it_ended() -> None:
    turns = [Turn([5, 6, 7], ["more"], "length"), Turn([5, 2])]
    spoken = asyncio.run(talk(RENDERER, FIRST, turns))
    assert [reply.finish_reason for reply in spoken.replies] == ["length", "stop"]
    assert [reply.completion_tokens for reply in spoken.replies] == [3, 2]
    assert [reply.prompt_tokens for reply in spoken.replies] == [len(p) for p in spoken.prompts]


def test_versions_of_the_server_are_kept_and_default_to_zero() -> None:
    mixed, _ = ask(changes={"weight_versions": [3, 3, 4]})
    assert mixed.branches[0].weight_version[-3:] == [3, 3, 4]
    plain, _ = ask(changes={"weight_versions": None})
    assert plain.branches[0].weight_version[-3:] == [0, 0, 0]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"token_ids": None}, "must understand `return_token_ids`"),
        ({"logprobs": None}, "must understand `return_token_ids` and `logprobs`"),
        ({"logprobs": {"token_logprobs": None}}, "must understand"),
        ({"logprobs": {}}, "must understand"),
        ({"logprobs": {"token_logprobs": [-1.0]}}, "3 token ids, 1 logprobs"),
        ({"logprobs": {"token_logprobs": [-1.0, None, -1.0]}}, "no logprob for some"),
        ({"logprobs": {"token_logprobs": [-1.0, float("nan"), -1.0]}}, "that is not finite"),
        ({"logprobs": {"token_logprobs": [-1.0, float("-inf"), -1.0]}}, "that is not finite"),
        ({"logprobs": {"token_logprobs": [-1.0, "-1.0", -1.0]}}, "no logprob for some"),
        ({"token_ids": [], "logprobs": {"token_logprobs": []}}, "0 token ids"),
        ({"weight_versions": [1]}, "1 weight versions"),
        ({"finish_reason": "abort"}, "ended the completion with 'abort'"),
        ({"finish_reason": None}, "ended the completion with None"),
    ],
)
def test_an_incomplete_answer_is_a_model_error(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        ask(changes=changes)


def test_experts_are_asked_for_from_the_first_token_that_has_none() -> None:
    rows = [bytes([place, 0, 7, 0]) for place in range(len(PROMPT) + 2)]
    answer = {"routed_experts": encode_experts(rows)}
    conversation, (body,) = ask(record_experts=True, changes=answer)
    assert body["routed_experts_prompt_start"] == 0
    [branch] = conversation.branches
    assert branch.experts == rows  # of all tokens but the last


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ({}, r"router_replay: .* --enable-return-routed-experts"),
        ({"routed_experts": encode_experts([b"1234"])}, "the experts of 1 tokens, not of"),
        ({"routed_experts": "AAAA"}, r"router_replay: "),
    ],
)
def test_missing_experts_are_an_error(sent: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        ask(record_experts=True, changes=sent)
