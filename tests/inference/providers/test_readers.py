"""Every reader of providers' answers reads every provider's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from itertools import chain, repeat
from typing import Any

import pytest

import vf
from tests.inference.providers.fake import standing
from tests.inference.providers.shapes import THOUGHT, Body, Refusal
from tests.inference.providers.table import BROKEN_OFF, PROVIDERS
from tests.rubrics.one_answer import answered
from tests.rubrics.scripted_judge import nonce_of
from vf.bridges.verifiers.hosted import InterceptedModel
from vf.inference.model import ContextFull, Conversation, Model, Reply, Sampling
from vf.runtime.errors import ModelError, RubricError


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeat what fails without a pause."""
    monkeypatch.setattr("vf.inference.patience.pause", lambda backoff, attempt: 0.0)


Make = Callable[[str], Model]
ARGUMENTS = '{"op": "+", "a": 1, "b": 2}'


def chat(url: str, retries: int = 0) -> vf.ChatModel:
    return vf.ChatModel("m", base_url=url, max_retries=retries)


def hosted(url: str) -> InterceptedModel:
    return InterceptedModel(url, "secret", "m", lambda: None, timeout=60.0)


READERS: dict[str, Make] = {"chat": chat, "hosted": hosted}
both = pytest.mark.parametrize("make", READERS.values(), ids=READERS)
each = pytest.mark.parametrize("name", PROVIDERS)


def respond(
    make: Make, *answers: Refusal, conversation: Conversation | None = None
) -> tuple[Reply, list[Body]]:
    """Ask a model whose provider gives these answers in turn, the last one without end."""
    bodies: list[Body] = []
    script = chain(answers, repeat(answers[-1]))

    def answer(body: Body) -> Refusal:
        bodies.append(body)
        return next(script)

    async def main(url: str) -> Reply:
        model = make(url)
        try:
            asked = conversation or Conversation([vf.Message("user", "x")])
            return await model.respond(asked, Sampling(64, seed=1))
        finally:
            await model.close()  # type: ignore[attr-defined]

    with standing(answer) as url:
        return asyncio.run(main(url)), bodies


@both
@each
def test_a_call_is_read(name: str, make: Make) -> None:
    provider = PROVIDERS[name]
    reply, _ = respond(make, (200, provider.answer("I add.", ARGUMENTS, 7)))
    (call,) = reply.message.tool_calls
    assert (call.name, call.arguments, call.malformed) == ("calculate", ARGUMENTS, None)
    assert call.id not in ("", "None")
    assert reply.message.content == "I add."
    assert reply.message.reasoning == (THOUGHT if provider.thinks else None)
    assert (reply.finish_reason, reply.prompt_tokens, reply.completion_tokens) == ("stop", 20, 5)


@both
@pytest.mark.parametrize(
    ("name", "reason"), [(name, cut) for name, each in PROVIDERS.items() for cut in each.cut]
)
def test_a_cut_is_read(name: str, reason: str, make: Make) -> None:
    reply, _ = respond(make, (200, PROVIDERS[name].answer("I sta", reason=reason)))
    assert (reply.message.content, reply.finish_reason) == ("I sta", "length")


@both
@pytest.mark.parametrize(
    ("name", "reason"), [(name, stop) for name, each in PROVIDERS.items() for stop in each.filtered]
)
def test_a_filter_is_read(name: str, reason: str, make: Make) -> None:
    body = PROVIDERS[name].answer("I sta", reason=reason)
    stopped = "refusal" if reason == "refusal" else "content_filter"
    assert respond(make, (200, body))[0].finish_reason == stopped
    body["choices"][0]["message"] = None
    if stopped == "content_filter":
        reply, _ = respond(make, (200, body))
        assert (reply.message.content, reply.finish_reason) == ("", "content_filter")


@both
@pytest.mark.parametrize("broken", BROKEN_OFF)
def test_an_interrupted_answer_is_a_failure(broken: Refusal, make: Make) -> None:
    with pytest.raises(ModelError, match="m: the answer"):
        respond(make, broken)


FAILS = [(name, each) for name, provider in PROVIDERS.items() for each in provider.fails]


@pytest.mark.parametrize(("name", "failed"), FAILS)
def test_a_failure_is_repeated_and_the_providers_words_are_quoted(
    name: str, failed: Refusal
) -> None:
    good = 200, PROVIDERS[name].answer("Hello!")
    reply, bodies = respond(lambda url: chat(url, 1), failed, good)
    assert (reply.message.content, len(bodies)) == ("Hello!", 2)
    assert bodies[0] == bodies[1]
    with pytest.raises(ModelError) as caught:
        respond(chat, failed)
    assert words(failed[1]) in str(caught.value)


def words(body: Any) -> str:
    """Return what an error must quote of a body."""
    if isinstance(body, str):
        return body[:12]
    found = body[0] if isinstance(body, list) else body
    found = found.get("error") or found.get("base_resp") or found
    if isinstance(found, str):
        return found
    return str(
        next((found[n] for n in ("message", "detail", "status_msg") if n in found), "choices")
    )


FULL = [(name, each) for name, provider in PROVIDERS.items() for each in provider.full]


@pytest.mark.parametrize(("name", "full"), FULL)
def test_a_full_context_is_not_a_failure(name: str, full: Refusal) -> None:
    with pytest.raises(ContextFull):
        respond(chat, full)
    fits = 200, PROVIDERS[name].answer("Hello!", reason="length")
    reply, (first, second) = respond(chat, full, fits)  # with less than max_tokens
    assert reply.message.content == "Hello!"
    assert first.pop("max_tokens") == 64
    assert first == second


@pytest.mark.parametrize(("room", "tokens"), [(20, [64, None, 32, 16]), (0, [64, None, 32, 16])])
def test_an_api_that_wants_max_tokens_is_asked_for_what_fits(room: int, tokens: list[Any]) -> None:
    bodies: list[Body] = []

    def answer(body: Body) -> Refusal:
        bodies.append(body)
        if "max_tokens" not in body:
            return 400, {"error": {"message": "max_tokens: Field required"}}
        if body["max_tokens"] > room:
            return PROVIDERS["anthropic"].full[1]
        return 200, PROVIDERS["anthropic"].answer("Hello!", reason="length")

    async def main(url: str) -> Reply:
        model = chat(url)
        try:
            return await model.respond(Conversation([vf.Message("user", "x")]), Sampling(64))
        finally:
            await model.close()

    with standing(answer) as url:
        if room:
            assert asyncio.run(main(url)).finish_reason == "length"
        else:
            with pytest.raises(ContextFull):
                asyncio.run(main(url))
    assert [body.get("max_tokens") for body in bodies][:4] == tokens


@each
def test_a_judge_reads_it(name: str) -> None:
    provider = PROVIDERS[name]

    def judged(answer: Callable[[Body], Refusal]) -> float:
        async def main(url: str) -> float:
            judge = vf.Judge("m", base_url=url, api_key_env=None, max_retries=1)
            try:
                return await judge(answered("4", "4"))
            finally:
                await judge.close()

        with standing(answer) as url:
            return asyncio.run(main(url))

    failures: Iterator[Refusal] = iter(provider.fails[:1])

    def right(body: Body) -> Refusal:
        if failed := next(failures, None):
            return failed
        said = f"It is.\nVERDICT {nonce_of(body)} correct: right"
        return provider.refuses(body) or (200, provider.answer(said))

    def broken(body: Body) -> Refusal:
        return BROKEN_OFF[1]

    if name == "openai":  # it takes no temperature of 0, and that is not left out in silence
        with pytest.raises(RubricError, match=r"temperature = 0\.0.*request_fields"):
            judged(right)
        return
    assert judged(right) == 1.0
    with pytest.raises(RubricError, match="was interrupted"):
        judged(broken)


@both
@each
def test_what_came_from_the_provider_goes_back_as_it_came(name: str, make: Make) -> None:
    provider = PROVIDERS[name]
    conversation = Conversation([vf.Message("user", "x")])
    for number in range(2):
        said = provider.answer("I add.", ARGUMENTS, number)
        reply, _ = respond(make, (200, said), conversation=conversation)
        conversation.messages.append(reply.message)
        conversation.messages.append(
            vf.Message("tool", "3", tool_call_id=reply.message.tool_calls[0].id)
        )
        conversation.turn += 1
    _, (body,) = respond(make, (200, provider.answer("Hello!")), conversation=conversation)
    request = {key: value for key, value in body.items() if key == "messages"}
    assert provider.refuses(request) is None
    ids = [body["messages"][place]["tool_calls"][0]["id"] for place in (1, 3)]
    assert len({*ids}) == 2
    for number, place in enumerate((1, 3)):
        sent, result = body["messages"][place : place + 2]
        came = provider.said("I add.", ARGUMENTS, number)
        (call,), (before,) = sent.pop("tool_calls"), came.pop("tool_calls")
        assert call == before | {"id": call["id"]}
        assert result["tool_call_id"] == call["id"]
        assert sent == {key: value for key, value in came.items() if value not in (None, [])}


@each
def test_reasoning_can_be_left_out(name: str) -> None:
    provider = PROVIDERS[name]
    conversation = Conversation([vf.Message("user", "x")])
    reply, _ = respond(chat, (200, provider.answer("I add.", ARGUMENTS)), conversation=conversation)
    conversation.messages.append(reply.message)

    def silent(url: str) -> vf.ChatModel:
        return vf.ChatModel("m", base_url=url, max_retries=0, send_reasoning=False)

    _, (body,) = respond(silent, (200, provider.answer("Hello!")), conversation=conversation)
    assert THOUGHT not in json.dumps(body)
    assert "I add." in json.dumps(body)


def test_calls_of_one_answer_get_ids_of_their_own() -> None:
    body = PROVIDERS["sglang"].answer("", ARGUMENTS)
    message = body["choices"][0]["message"]
    call = message["tool_calls"][0]
    message["tool_calls"] = [
        call | {"id": None},
        {key: value for key, value in call.items() if key != "id"},
        call | {"id": ""},
        call | {"id": "a"},
        call | {"id": "a"},
        call | {"id": 7},
    ]
    reply, _ = respond(chat, (200, body))
    ids = [call.id for call in reply.message.tool_calls]
    assert len({*ids}) == 6
    assert (ids[3], ids[5]) == ("a", "7")
    assert all(len(id) == 9 and id.isalnum() for id in (*ids[:3], ids[4]))


REASONINGS: list[Body] = [
    {"content": [{"type": "output_text", "text": "Hi"}], "reasoning": "hm"},
    {"content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Hi"}]},
    {"content": "Hi", "reasoning": {"text": "hm"}},
    {"content": "Hi", "reasoning": {"summary": [{"type": "summary_text", "text": "hm"}]}},
    {"content": "Hi", "reasoning": ["h", {"type": "text", "text": "m"}]},
    {"content": "Hi", "reasoning_details": [{"type": "reasoning.summary", "summary": "hm"}]},
    {"content": "Hi", "thinking": "hm"},
    {"content": "Hi", "reasoning_content": [{"type": "text", "text": "hm"}]},
]


@both
@pytest.mark.parametrize("message", REASONINGS)
def test_reasoning_is_read_in_whatever_form_it_has(message: Body, make: Make) -> None:
    body = PROVIDERS["ollama"].answer("")
    body["choices"][0]["message"] = {"role": "assistant", **message}
    reply, _ = respond(make, (200, body))
    assert (reply.message.content, reply.message.reasoning) == ("Hi", "hm")


UNREADABLE: list[Any] = [
    "",
    "{",
    "<html>Bad gateway</html>",
    "null",
    {"choices": None},
    {"choices": []},
    {"choices": [None]},
    {"choices": [{"finish_reason": "stop", "message": None}]},
    {"error": {"message": "boo"}},
    {"error": "boo"},
    {"message": "boo"},
    {"detail": "boo"},
]


@pytest.mark.parametrize("body", UNREADABLE)
def test_what_is_not_an_answer_is_asked_again_and_quoted(body: Any) -> None:
    good = 200, PROVIDERS["ollama"].answer("Hello!")
    reply, bodies = respond(lambda url: chat(url, 1), (200, body), good)
    assert (reply.message.content, len(bodies)) == ("Hello!", 2)
    with pytest.raises(ModelError) as caught:
        respond(chat, (200, body))
    if "boo" in json.dumps(body):
        assert "boo" in str(caught.value)


def test_an_unknown_end_is_named_and_never_a_reward() -> None:
    with pytest.raises(ModelError, match="finish_reason 'gone_fishing', which is not known"):
        respond(chat, (200, PROVIDERS["vllm"].answer("Hello!", reason="gone_fishing")))


def test_a_refusal_is_the_answer_and_says_so() -> None:
    body = PROVIDERS["openai"].answer("")
    body["choices"][0]["message"]["refusal"] = "I cannot help with that."
    conversation = Conversation([vf.Message("user", "x")])
    reply, _ = respond(chat, (200, body), conversation=conversation)
    assert reply.message.content == "I cannot help with that."
    assert reply.finish_reason == "refusal"


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, {"code": "content_filter", "message": "The response was filtered due to the prompt"}),
        (403, {"code": 403, "message": "Your chosen model requires moderation: input was flagged"}),
        (400, {"message": "Content Exists Risk", "type": "invalid_request_error"}),
        (400, {"innererror": {"code": "ResponsibleAIPolicyViolation"}, "message": "filtered"}),
        (403, {"message": "Content violates usage guidelines. Failed check: SAFETY_CHECK"}),
        (400, {"message": "Output blocked by content filtering policy"}),
        (400, {"message": "Your request was flagged by our moderation system"}),
        (400, {"message": "Input data may contain inappropriate content."}),
    ],
)
def test_a_prompt_that_is_filtered_is_an_empty_answer(status: int, error: Body) -> None:
    reply, _ = respond(chat, (status, {"error": error}))
    assert (reply.message.content, reply.finish_reason) == ("", "content_filter")


def test_a_minutes_quota_is_not_the_context() -> None:
    text = "Request too large for model `m` on tokens per minute (TPM): Limit 6000, Requested 9000"
    refused = 413, {"error": {"message": text, "code": "rate_limit_exceeded"}}
    with pytest.raises(ModelError, match="tokens per minute"):
        respond(chat, refused)


@pytest.mark.parametrize("arguments", ['{"op": "+", ', "3", "[]", "plus", ""])
def test_a_call_that_is_not_json_cannot_keep_the_rollout_from_being_scored(arguments: str) -> None:
    """A server that refuses in a conversation what its own model wrote, as vLLM does."""
    bodies: list[Body] = []

    def answer(body: Body) -> Refusal:
        bodies.append(body)
        calls = [call for each in body["messages"] for call in each.get("tool_calls", ())]
        for call in calls:
            try:
                assert isinstance(json.loads(call["function"]["arguments"]), dict)
            except (ValueError, AssertionError):
                return 400, {"error": {"message": "Expecting value: line 1 column 1 (char 0)"}}
        said = ("Answer: 3",) if calls else ("", arguments)
        return 200, PROVIDERS["vllm"].answer(*said)

    async def main(url: str) -> vf.Trace:
        model = chat(url)
        task = vf.Task("1 + 2", "Compute 1 + 2.", 3, {"operations": 1})
        try:
            return await vf.rollout(vf.make("calculator"), task, model)
        finally:
            await model.close()

    with standing(answer) as url:
        trace = asyncio.run(main(url))
    assert trace.error is None
    assert trace.reward is not None
    assert trace.messages[2].tool_calls[0].arguments == (arguments or "{}")
    (sent,) = (each for each in bodies[-1]["messages"] if "tool_calls" in each)
    assert arguments in sent["tool_calls"][0]["function"]["arguments"].replace("\\", "")
