"""vLLM's tokens-in, tokens-out API: what is asked, and which answers are refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from vf.inference.completions import Completion, generate_wire
from vf.inference.model import Conversation, Sampling
from vf.inference.model_files import resolve_model
from vf.inference.models.token_model import TokenModel
from vf.inference.rendering.renderer import Renderer
from vf.inference.serving import Served
from vf.inference.token_client import TokenClient
from vf.inference.wire import JsonClient
from vf.runtime.errors import ModelError
from vf.testing import FakeServer, Response
from vf.traces.messages import Message

CHOICE = {
    "index": 0,
    "token_ids": [5, 6, 7],
    "logprobs": {"content": [{"logprob": -1.0, "token": "x"}, {"logprob": -2}, {"logprob": -0.5}]},
    "weight_versions": [
        {"version": "3", "start": 0, "end": 2},
        {"version": "4", "start": 2, "end": 3},
    ],
    "finish_reason": "stop",
}


def ask(answer: Any, sampling: Sampling | None = None) -> tuple[Completion, dict[str, Any]]:
    """Ask a server that gives this answer; return the completion and the request's body."""

    async def run() -> tuple[Completion, dict[str, Any]]:
        async with FakeServer(Response(answer)) as server:
            client = JsonClient(server.base_url.removesuffix("/v1"), max_retries=0)
            served = Served("org/model", version=9)
            try:
                completion = await generate_wire(
                    client, served, [1, 2], sampling or Sampling(max_tokens=3), [0]
                )
            finally:
                await client.close()
        return completion, server.bodies[0]

    return asyncio.run(run())


def test_every_token_has_the_version_of_its_span() -> None:
    completion, _ = ask({"choices": [CHOICE]})
    assert completion == Completion([5, 6, 7], [-1.0, -2, -0.5], [3, 3, 4], "stop")


@pytest.mark.parametrize(
    ("response_format", "structure"),
    [
        (
            {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}},
            {"json": {"type": "object"}},
        ),
        ({"type": "json_object"}, {"json_object": True}),
        ({"type": "text"}, None),
        (None, None),
    ],
)
def test_a_response_format_is_passed_on(
    response_format: dict[str, Any] | None, structure: dict[str, Any] | None
) -> None:
    async def run() -> dict[str, Any]:
        async with FakeServer(Response({"choices": [CHOICE]})) as server:
            root = server.base_url.removesuffix("/v1")
            client = TokenClient.to(root, "org/model", wire=generate_wire)
            model = TokenModel(
                client, Renderer.from_pretrained(resolve_model("tiny")), max_seq_len=100
            )
            conversation = Conversation([Message("user", "?")])
            if response_format is not None:
                conversation.options = {"response_format": response_format}
            await model.respond(conversation, Sampling())
            await client.close()
        asked: dict[str, Any] = server.bodies[0]["sampling_params"]
        return asked

    assert asyncio.run(run()).get("structured_outputs") == structure


def test_the_request_holds_token_ids_and_leaves_no_default_to_the_server() -> None:
    _, body = ask({"choices": [CHOICE]})
    assert body == {
        "model": "org/model",
        "token_ids": [1, 2],
        "sampling_params": {
            "logprobs": 0,
            "detokenize": False,
            "max_tokens": 3,
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0,
            "frequency_penalty": 0,
            "stop_token_ids": [0],
        },
    }
    wanted = {"top_p": 0.9, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.2, "seed": 0}
    _, body = ask({"choices": [CHOICE]}, Sampling(**wanted))  # type: ignore[arg-type]
    assert {name: body["sampling_params"][name] for name in wanted} == wanted


def test_texts_to_stop_at_need_a_server_that_reads_its_tokens() -> None:
    _, body = ask({"choices": [CHOICE]}, Sampling(stop=("END",)))
    wanted = {"stop": ["END"], "include_stop_str_in_output": True, "detokenize": True}
    assert {name: body["sampling_params"][name] for name in wanted} == wanted


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"token_ids": None}, "missing"),
        ({"logprobs": None}, "missing"),
        ({"logprobs": {"content": None}}, "missing"),
        ({"logprobs": {"content": [{}, {}, {}]}}, "missing: 'logprob'"),
        ({"logprobs": {"content": [{"logprob": -1.0}]}}, "3 token ids, 1 logprobs"),
        ({"logprobs": {"content": [{"logprob": None}] * 3}}, "no logprob for some"),
        ({"weight_versions": None}, "missing"),
        ({"weight_versions": []}, "3 logprobs and 0 weight versions"),
        ({"weight_versions": [{"version": "3", "start": 0, "end": 2}]}, "and 2 weight versions"),
        ({"weight_versions": [{"start": 0, "end": 3}]}, "missing: 'version'"),
        ({"weight_versions": [{"version": "base", "start": 0, "end": 3}]}, "invalid literal"),
        ({"weight_versions": [{"version": None, "start": 0, "end": 3}]}, "missing"),
        ({"finish_reason": "abort"}, "ended the completion with 'abort'"),
        ({"token_ids": [], "logprobs": {"content": []}, "weight_versions": []}, "0 token ids"),
    ],
)
def test_an_incomplete_answer_is_a_model_error(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        ask({"choices": [CHOICE | changes]})


@pytest.mark.parametrize("name", sorted(CHOICE.keys() - {"index"}))
def test_a_missing_field_is_a_model_error(name: str) -> None:
    choice = {key: value for key, value in CHOICE.items() if key != name}
    with pytest.raises(ModelError, match=f"does not tell .*missing: '{name}'"):
        ask({"choices": [choice]})


@pytest.mark.parametrize("answer", [{}, {"choices": []}, {"choices": None}, {"choices": [3]}])
def test_no_choice_is_a_model_error(answer: Any) -> None:
    with pytest.raises(ModelError, match="does not tell"):
        ask(answer)
