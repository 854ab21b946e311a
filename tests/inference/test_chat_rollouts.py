"""Rollouts through a chat API: the embedded server, and servers that fail."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import vf
from tests.inference.tiny_serving import load_model, running_engine, running_server
from vf.inference.model import Conversation, Reply, Sampling
from vf.runtime.errors import ConfigError, ModelError
from vf.testing import FakeServer, Response, chat_completion
from vf.testing.fake_server import Script
from vf.traces.trace import StopReason, Trace

ASK = [vf.Message("user", "x")]
ADD = {"id": "c9", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
ANSWER = chat_completion(None, usage=(11, 7), reasoning_content="hm", tool_calls=[ADD]).body


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_engine(load_model(), max_seq_len=1024) as engine, running_server(engine) as base:
        yield base


def respond(
    answer: Script, sampling: Sampling | None = None, **settings: Any
) -> tuple[Reply, list[dict[str, Any]]]:
    async def main() -> tuple[Reply, list[dict[str, Any]]]:
        async with FakeServer(answer) as server:
            model = vf.ChatModel("m", base_url=server.base_url, **{"max_retries": 0} | settings)
            try:
                conversation = Conversation(list(ASK))
                return await model.respond(conversation, sampling or Sampling()), server.bodies
            finally:
                await model.close()

    return asyncio.run(main())


def test_without_key_and_server_there_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="no API key: set OPENAI_API_KEY"):
        vf.ChatModel("m")
    assert vf.ChatModel("m", base_url="http://127.0.0.1:1/v1").model == "m"
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    assert vf.ChatModel("m").model == "m"


@pytest.mark.parametrize("environment", ["calculator", "reverse-text"])
def test_rollouts_through_the_embedded_server_are_scored(url: str, environment: str) -> None:
    async def main() -> list[Trace]:
        definition = vf.make(environment)
        tasks = list(definition.tasks("train"))[:4]
        model = vf.ChatModel("tiny", base_url=url, max_retries=0)
        try:
            return await asyncio.gather(
                *(
                    vf.rollout(definition, task, model, sampling=Sampling(32), seed=seed)
                    for seed, task in enumerate(tasks)
                )
            )
        finally:
            await model.close()

    for trace in asyncio.run(main()):
        assert trace.error is None
        assert trace.reward is not None
        assert trace.branches == []
        assert 0 < trace.turns[0].completion_tokens <= 32
        assert trace.turns[0].prompt_tokens > 0
        ids = [call.id for message in trace.messages for call in message.tool_calls]
        assert len(set(ids)) == len(ids)


def test_an_answer_is_read_with_its_calls_and_reasoning() -> None:
    reply, _ = respond(Response(ANSWER))
    (call,) = reply.message.tool_calls
    assert (call.id, call.name, call.arguments) == ("c9", "add", '{"a": 1}')
    assert (reply.message.content, reply.message.reasoning) == ("", "hm")
    assert (reply.finish_reason, reply.prompt_tokens, reply.completion_tokens) == ("stop", 11, 7)


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": None, "completion_tokens": None}])
def test_a_cut_off_answer_says_so_and_usage_may_be_missing(usage: dict[str, None] | None) -> None:
    choice = ANSWER["choices"][0] | {"finish_reason": "length"}
    reply, _ = respond(Response(ANSWER | {"choices": [choice], "usage": usage}))
    assert (reply.finish_reason, reply.prompt_tokens, reply.completion_tokens) == ("length", 0, 0)


def test_only_parameters_that_were_set_are_sent() -> None:
    _, (plain,) = respond(Response(ANSWER))
    assert plain == {
        "model": "m",
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 512,
        "temperature": 1.0,
        "top_p": 1.0,
    }
    _, (full,) = respond(
        Response(ANSWER),
        Sampling(9, 0.5, 0.9, 5, 0.1, 1.2, seed=3),
        extra_body={"chat_template_kwargs": {"enable_thinking": False}},
    )
    expected = {"max_tokens": 9, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1}
    expected |= {"repetition_penalty": 1.2, "seed": 3}
    assert {name: full[name] for name in expected} == expected
    assert full["chat_template_kwargs"] == {"enable_thinking": False}


# What servers say of a context of 100 tokens, where a prompt has 60, or all of them.
ROOM = [
    "'max_tokens' or 'max_completion_tokens' is too large: 512. This model's maximum context "
    "length is 100 tokens and your request has 60 input tokens (512 > 100 - 60).",
    "This model's maximum context length is 100 tokens. However, you requested 572 tokens (60 in "
    "the messages, 512 in the completion). Please reduce the length of the messages or completion.",
    "Requested token count exceeds the model's maximum context length of 100 tokens.",
    "`inputs` tokens + `max_new_tokens` must be <= 100. Given: 60 `inputs` tokens and 512",
]
FULL = [
    "This model's maximum context length is 100 tokens. However, your request has 100 input ones.",
    "The decoder prompt (length 100) is longer than the maximum model length of 100.",
    "the request exceeds the available context size, try increasing it",
    "prompt is too long: 100 tokens > 100 maximum",
]


@pytest.mark.parametrize("refusal", ROOM)
def test_max_tokens_beyond_the_context_are_cut_to_it(refusal: str) -> None:
    answers = [Response(refusal, 400), Response(ANSWER)]
    reply, (first, second) = respond(answers, Sampling(512, seed=7))
    assert reply.completion_tokens == 7
    assert first.pop("max_tokens") == 512
    assert second == first  # a server's default is all that its context leaves


@pytest.mark.parametrize("refusal", FULL)
def test_a_conversation_longer_than_the_context_ends_truncated_and_scored(refusal: str) -> None:
    refused = Response(refusal, 400)
    script: Script = [{"calculate": {"op": "+", "a": 1, "b": 2}}, refused, refused]

    async def main() -> Trace:
        async with FakeServer(script) as server:
            model = vf.ChatModel("m", base_url=server.base_url, max_retries=0)
            environment = vf.make("calculator")
            try:
                return await vf.rollout(environment, next(iter(environment.tasks("eval"))), model)
            finally:
                await model.close()

    trace = asyncio.run(main())
    assert trace.error is None
    assert trace.stop_reason is StopReason.MAX_SEQ_LEN
    assert trace.truncated
    assert trace.reward is not None


def test_tools_in_text_reach_a_server_that_takes_none() -> None:
    """The system prompt lists them, and the call in the answer's text is run."""

    call = '{"name": "calculate", "arguments": {"op": "+", "a": 3, "b": 4}}'
    answers = [f"<think>Sum.</think>I add.<tool_call>{call}</tool_call>", "Answer: 7"]

    async def main() -> tuple[Trace, list[dict[str, Any]]]:
        async with FakeServer(answers) as server:
            model = vf.ChatModel("m", base_url=server.base_url, max_retries=0, tool_style="text")
            try:
                task = vf.Task("t", "Compute 3 + 4.", 7, {"operations": 1})
                return await vf.rollout(vf.make("calculator"), task, model), server.bodies
            finally:
                await model.close()

    trace, (first, second) = asyncio.run(main())
    assert trace.error is None
    assert [event.kind for event in trace.tool_events] == ["ok"]
    assert [m.role for m in trace.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert (trace.messages[2].content, trace.messages[2].reasoning) == ("I add.", "Sum.")
    assert "tools" not in first
    assert '"name": "calculate"' in first["messages"][0]["content"]
    assert [m["role"] for m in second["messages"]] == ["system", "user", "assistant", "user"]
    assert second["messages"][2]["content"] == f"I add.\n<tool_call>\n{call}\n</tool_call>"
    assert second["messages"][3]["content"] == "<tool_response>\n7\n</tool_response>"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Response("no such parameter", 400), "BadRequestError.*no such parameter"),
        (Response("no such model", 404), "NotFoundError.*no such model"),
        (Response("broken", 500), "InternalServerError.*broken"),
        (Response(ANSWER | {"choices": []}), "no choices"),
        (Response(b"<html>hi</html>"), "chat completion"),
        (Response(b"{"), "m: "),
    ],
)
def test_a_failing_server_is_a_model_error(answer: Response, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        respond([answer])


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"content": [{"type": "image"}]}, "holds no image"),
        ({"tool_calls": [{"id": "1", "type": "custom", "custom": {"name": "f"}}]}, "a function"),
    ],
)
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_an_answer_that_cannot_be_read_is_a_model_error(
    message: dict[str, Any], reason: str
) -> None:
    choice = ANSWER["choices"][0] | {"message": {"role": "assistant", **message}}
    with pytest.raises(ModelError, match=reason):
        respond([Response(ANSWER | {"choices": [choice]})])


def test_a_silent_server_is_a_model_error() -> None:
    with pytest.raises(ModelError, match=r"did not answer within 0\.2 s, its timeout"):
        respond(Response(after=asyncio.Event()), timeout=0.2)


def test_each_run_of_asyncio_may_ask_the_same_model(url: str) -> None:
    model = vf.ChatModel("tiny", base_url=url, max_retries=0)

    async def ask() -> Reply:
        return await model.respond(Conversation(list(ASK)), Sampling(max_tokens=2))

    assert [asyncio.run(ask()).completion_tokens > 0 for _ in range(2)] == [True, True]


def test_passing_failures_are_tried_again() -> None:
    script = [Response("busy", 503), Response(ANSWER)]
    reply, bodies = respond(script, max_retries=2)
    assert reply.message.tool_calls
    assert len(bodies) == 2


def test_a_model_that_is_not_there_fails_the_rollout_and_gives_no_reward() -> None:
    async def main() -> Trace:
        model = vf.ChatModel("m", base_url="http://127.0.0.1:1/v1", max_retries=0)
        definition = vf.make("reverse-text")
        task = next(iter(definition.tasks("train")))
        try:
            return await vf.rollout(definition, task, model)
        finally:
            await model.close()

    trace = asyncio.run(main())
    assert trace.stop_reason is StopReason.ERROR
    assert trace.reward is None
    assert trace.error is not None
    assert trace.error.boundary == "model"
    assert "APIConnectionError" in trace.error.message
