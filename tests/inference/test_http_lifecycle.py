"""The embedded server when the client leaves, the engine dies, or the text is structured."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import openai
import pytest

from tests.inference.chat_templates import OPENS_THINKING, tokenizer
from tests.inference.tiny_serving import counted_passes, load_model, running_engine, running_server
from tests.waiting import until
from vf.inference.completions import Completion
from vf.inference.embedded.answers import Answer, Job, chat_choice, chat_chunks
from vf.inference.embedded.embedded_engine import EmbeddedEngine
from vf.inference.embedded.requests import ChatRequest
from vf.inference.model import Sampling
from vf.inference.rendering.renderer import Renderer
from vf.runtime.errors import EngineError
from vf.traces.messages import Message

LONG: dict[str, Any] = {
    "model": "tiny",
    "prompt": [1, 40, 41],
    "max_tokens": 480,
    "stop_token_ids": [-1],
}
SHORT = LONG | {"max_tokens": 2}
RENDERER = Renderer(tokenizer())


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedEngine]:
    with running_engine(load_model(), max_requests=1) as running:
        yield running


@pytest.mark.parametrize("how", [{}, {"n": 3}, {"stream": True}, {"stop": "never"}])
def test_a_client_that_leaves_cancels_its_generation(
    engine: EmbeddedEngine, how: dict[str, Any]
) -> None:
    async def main(url: str, passes: list[int]) -> None:
        async with aiohttp.ClientSession() as session:
            asking = asyncio.create_task(read(session, url, LONG | how))
            await until(lambda: bool(passes))
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            # The only place is free again, before the answer could have been whole.
            assert len((await read(session, url, SHORT))["choices"]) == 1
            assert len(passes) < LONG["max_tokens"]

    with running_server(engine) as url, counted_passes(engine) as passes:
        asyncio.run(main(url, passes))


async def read(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> Any:
    async with session.post(url + "/completions", json=body) as response:
        return json.loads(await response.read())


def is_dead(engine: EmbeddedEngine) -> bool:
    try:
        engine.check()
    except EngineError:
        return True
    return False


def test_a_dead_engine_answers_503_everywhere() -> None:
    with running_engine(load_model()) as engine, running_server(engine) as url:

        def fail(*args: Any, **kwargs: Any) -> None:
            raise ValueError("a burnt-out layer")

        async def main() -> None:
            async with aiohttp.ClientSession() as session:
                pending = [asyncio.create_task(read(session, url, LONG)) for _ in range(2)]
                pending.append(asyncio.create_task(read(session, url, LONG | {"stop": "never"})))
                with counted_passes(engine) as passes:
                    await until(lambda: passes)
                engine.model.get_submodule("model.layers.1.mlp").forward = fail
                for task in pending:
                    assert "a burnt-out layer" in (await task)["error"]["message"]
                # The requests hear of it first, the engine when its thread has ended.
                await until(lambda: is_dead(engine))
                async with session.get(url.removesuffix("/v1") + "/health") as response:
                    assert response.status == 503
                    assert "a burnt-out layer" in await response.text()
                for body in (SHORT, SHORT | {"stream": True}):
                    async with session.post(url + "/completions", json=body) as response:
                        assert response.status == 503
                        assert "a burnt-out layer" in await response.text()

        asyncio.run(main())


def test_a_stopped_server_refuses_connections_and_can_be_stopped_twice(
    engine: EmbeddedEngine,
) -> None:
    with running_server(engine) as url:
        pass

    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=0) as client:
            await client.models.list()

    with pytest.raises(openai.APIConnectionError):
        asyncio.run(main())
    engine.check()


class Spoken(EmbeddedEngine):
    """An engine with a script of what to say, token by token."""

    def __init__(self, ids: list[int]) -> None:
        super().__init__(load_model(), max_seq_len=512)
        self.ids = ids

    async def stream(
        self, prompt_ids: Any, sampling: Sampling, stop_token_ids: Any, lora: Any = None
    ) -> Any:
        for end in range(1, len(self.ids) + 1):
            reason = "stop" if end == len(self.ids) else None
            yield Completion(self.ids[:end], [-1.0] * end, [0] * end, reason)  # type: ignore[arg-type]


def streamed(text: str, renderer: Renderer = RENDERER, **fields: Any) -> tuple[Any, Any]:
    """Return the chunks of a streamed chat answer, and the choice of the whole one."""
    ids = list(renderer.tokenizer.encode(text))
    body = ChatRequest.model_validate(
        {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "stream": True} | fields
    )
    prompt_ids = renderer.prompt([Message("user", "x")], [])
    job = Job(Spoken(ids), renderer, body, prompt_ids, 400, [-1])

    async def main() -> list[dict[str, Any]]:
        return [chunk async for chunk in chat_chunks(job, body, {})]

    answer = Answer(Completion(ids, [-1.0] * len(ids), [0] * len(ids), "stop"), text, "stop")
    return asyncio.run(main()), chat_choice(job, body, 0, answer)


def deltas(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [chunk["choices"][0]["delta"] for chunk in chunks]


CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


@pytest.mark.parametrize(
    "text",
    [
        "plain text that is sent as it comes",
        "naïve 日本語 🙂",
        "Let me see. " + CALL,
        " \n Let me see. " + CALL + CALL + " done",
        "<think>hm</think>\n\nyes",
        "<think>hm</think>" + CALL,
        "a < b and so on",
        CALL,
        "<think>never closed",
    ],
)
@pytest.mark.parametrize("template", [None, OPENS_THINKING])
def test_a_streamed_chat_answer_adds_up_to_the_whole_one(text: str, template: str | None) -> None:
    chunks, choice = streamed(text, Renderer(tokenizer(template)))
    whole = choice["message"]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(reasons) - 1) + [choice["finish_reason"]]
    content = "".join(delta.get("content", "") for delta in deltas(chunks))
    assert content.strip() == (whole["content"] or "")
    reasoning = [d["reasoning_content"] for d in deltas(chunks) if "reasoning_content" in d]
    assert reasoning == ([whole["reasoning_content"]] if "reasoning_content" in whole else [])
    calls = [call for delta in deltas(chunks) for call in delta.get("tool_calls", [])]
    assert [call.pop("index") for call in calls] == list(range(len(calls)))
    assert calls == whole.get("tool_calls", [])


def test_plain_text_is_streamed_piece_by_piece() -> None:
    chunks, _ = streamed("plain text that is sent as it comes")
    assert deltas(chunks)[0] == {"role": "assistant", "content": ""}
    assert sum(bool(delta.get("content")) for delta in deltas(chunks)) > 3


def test_usage_comes_last_where_it_was_asked_for() -> None:
    chunks, _ = streamed("yes", stream_options={"include_usage": True})
    sampled = len(RENDERER.tokenizer.encode("yes"))
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == sampled
    assert all("usage" not in chunk for chunk in chunks[:-1])


def test_call_ids_differ_from_turn_to_turn() -> None:
    short = [{"role": "user", "content": "x"}]
    longer = [*short, {"role": "assistant", "content": "y"}, {"role": "user", "content": "z"}]
    choices = [streamed(CALL, messages=messages)[1] for messages in (short, longer)]
    ids = [choice["message"]["tool_calls"][0]["id"] for choice in choices]
    assert ids[0] != ids[1]


def test_a_cut_off_call_still_says_that_the_answer_was_cut_off() -> None:
    body = ChatRequest.model_validate({"model": "t", "messages": [{"role": "user"}]})
    text = '<tool_call>{"name": "add"'
    ids = list(RENDERER.tokenizer.encode(text))
    job = Job(Spoken(ids), RENDERER, body, [1], 400, [-1])
    answer = Answer(Completion(ids, [-1.0], [0], "length"), text, "length")
    assert chat_choice(job, body, 0, answer)["finish_reason"] == "length"
