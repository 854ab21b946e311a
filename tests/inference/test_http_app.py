"""The embedded server through the official OpenAI client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import aiohttp
import openai
import pytest

from tests.inference.chat_templates import HIDES_TOOLS, tokenizer
from tests.inference.tiny_serving import (
    TOOL,
    load_model,
    plain_logprobs,
    running_engine,
    running_server,
)
from vf.inference.embedded.app import build_app
from vf.inference.embedded.embedded_engine import EmbeddedEngine
from vf.inference.embedded.server_thread import ServerThread
from vf.inference.model import Sampling
from vf.inference.model_files import resolve_model
from vf.inference.rendering.renderer import Renderer
from vf.inference.token_client import TokenClient, processed_tokens
from vf.inference.wire import JsonClient
from vf.runtime.errors import EngineError

RENDERER = Renderer.from_pretrained(resolve_model("tiny"))
ASK = [{"role": "user", "content": "Compute 3 + 4."}]
LONG = [{"role": "user", "content": "x" * 430}]  # leaves little of the context of 512 tokens
PROMPT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
RAW: dict[str, Any] = {"return_token_ids": True, "stop_token_ids": [-1]}  # nothing stops it early


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedEngine]:
    with running_engine(load_model()) as running:
        yield running


@pytest.fixture(scope="module")
def url(engine: EmbeddedEngine) -> Iterator[str]:
    with running_server(engine, RENDERER) as base_url:
        yield base_url


def ask(url: str, question: Callable[[Any], Awaitable[Any]]) -> Any:
    """Ask through the official client."""

    async def main() -> Any:
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            async with asyncio.timeout(60):
                return await question(client)

    return asyncio.run(main())


def complete(url: str, **body: Any) -> Any:
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 8} | body
    return ask(url, lambda client: client.completions.create(**body))


def chat(url: str, **body: Any) -> Any:
    body = {"model": "tiny", "messages": ASK, "max_tokens": 8} | body
    return ask(url, lambda client: client.chat.completions.create(**body))


def post(url: str, path: str, body: Any) -> tuple[int, Any]:
    """POST without a client's help; return the status and the decoded answer."""

    async def main() -> tuple[int, Any]:
        headers = {"Content-Type": "application/json"}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.post(url + path, data=body) as reply,
        ):
            return reply.status, await reply.json()

    return asyncio.run(main())


def get(url: str) -> tuple[int, Any]:
    async def main() -> tuple[int, Any]:
        async with aiohttp.ClientSession() as session, session.get(url) as reply:
            return reply.status, await reply.json()

    return asyncio.run(main())


def test_the_model_is_listed_with_its_context_and_version(url: str, engine: EmbeddedEngine) -> None:
    (card,) = ask(url, lambda client: client.models.list()).data
    assert card.id == "tiny"
    assert card.max_model_len == engine.max_seq_len
    assert card.weight_version == engine.version


def test_a_completion_returns_ids_that_decode_to_its_text(url: str) -> None:
    answer = complete(url, seed=1, logprobs=1, extra_body=RAW)
    (choice,) = answer.choices
    assert choice.prompt_token_ids == RENDERER.tokenizer.encode(PROMPT)
    assert RENDERER.decode(choice.token_ids) == choice.text
    assert len(choice.token_ids) == len(choice.weight_versions) == 8
    assert choice.logprobs.tokens == RENDERER.tokenizer.convert_ids_to_tokens(choice.token_ids)
    assert choice.finish_reason == "length"
    usage = answer.usage
    assert usage.prompt_tokens == len(choice.prompt_token_ids)
    assert (
        usage.total_tokens
        == usage.prompt_tokens + 8
        == usage.prompt_tokens + (usage.completion_tokens)
    )


def test_a_prompt_of_ids_is_taken_as_it_is(url: str, engine: EmbeddedEngine) -> None:
    prompt = [1, 100, 101, 101, 100]
    (choice,) = complete(url, prompt=prompt, seed=1, logprobs=1, extra_body=RAW).choices
    assert choice.prompt_token_ids == prompt
    plain = plain_logprobs(engine, prompt, choice.token_ids)
    assert choice.logprobs.token_logprobs == pytest.approx(plain, abs=1e-3)


def test_the_stop_token_is_among_the_ids_but_not_in_the_text(url: str) -> None:
    (free,) = complete(url, seed=1, temperature=50.0, extra_body=RAW).choices
    stop = free.token_ids[3]
    extra = RAW | {"stop_token_ids": [stop]}
    (choice,) = complete(url, seed=1, temperature=50.0, extra_body=extra).choices
    assert choice.finish_reason == "stop"
    assert choice.token_ids[-1] == stop
    assert choice.text == RENDERER.decode(choice.token_ids[:-1])


def test_choices_of_one_request_differ_and_are_numbered(url: str) -> None:
    answer = complete(url, n=3, seed=1, temperature=50.0, extra_body=RAW)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({tuple(choice.token_ids) for choice in answer.choices}) == 3
    assert answer.usage.completion_tokens == 24


def test_a_stop_string_ends_the_text_before_it(url: str) -> None:
    (free,) = complete(url, seed=2, temperature=50.0, max_tokens=30, extra_body=RAW).choices
    stop = free.text[6:9]
    (choice,) = complete(
        url, seed=2, temperature=50.0, max_tokens=30, stop=[stop, "never"], extra_body=RAW
    ).choices
    assert choice.text == free.text[: free.text.index(stop)]
    assert choice.finish_reason == "stop"
    assert len(choice.token_ids) < 30
    shown = RAW | {"include_stop_str_in_output": True}
    (whole,) = complete(
        url, seed=2, temperature=50.0, max_tokens=30, stop=[stop, "never"], extra_body=shown
    ).choices
    assert whole.text == choice.text + stop
    assert whole.token_ids == choice.token_ids


async def collect(stream: Any) -> list[Any]:
    return [chunk async for chunk in await stream]


def stream_completion(url: str, **body: Any) -> list[Any]:
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 30, "stream": True} | body
    chunks: list[Any] = ask(url, lambda client: collect(client.completions.create(**body)))
    return chunks


@pytest.mark.parametrize("stop", [None, "a stop string that is longer than the whole answer " * 9])
def test_a_stream_adds_up_to_the_whole_text(url: str, stop: str | None) -> None:
    extra = {"stop_token_ids": [-1]}
    settings: dict[str, Any] = {"seed": 3, "temperature": 50.0, "extra_body": extra}
    (whole,) = complete(url, max_tokens=30, **settings).choices
    chunks = stream_completion(url, stop=stop, **settings)
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.text
    assert chunks[-1].choices[0].finish_reason == "length"
    assert len(chunks) > 1 or stop is not None


def test_a_stream_never_shows_any_of_the_stop_string(url: str) -> None:
    extra = {"stop_token_ids": [-1]}
    settings: dict[str, Any] = {"seed": 3, "temperature": 50.0, "extra_body": extra}
    (whole,) = complete(url, max_tokens=30, **settings).choices
    stop = whole.text[10:14]
    chunks = stream_completion(url, stop=stop, **settings)
    text = "".join(chunk.choices[0].text for chunk in chunks)
    assert text == whole.text[: whole.text.index(stop)]
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_a_chat_answer_is_what_its_ids_say(url: str) -> None:
    answer = chat(url, tools=[TOOL], n=2, seed=1, logprobs=True, extra_body=RAW)
    for choice in answer.choices:
        content = choice.message.content
        text = RENDERER.decode(choice.token_ids)
        parsed = RENDERER.parse_text(text, prompt_ids=[1], turn=1)
        assert (content or "") == parsed.content
        assert len(choice.message.tool_calls or []) == len(parsed.tool_calls)
        assert len(choice.logprobs.content) == len(choice.token_ids) == 8


def test_the_offered_tools_are_part_of_the_prompt(url: str) -> None:
    plain = chat(url).usage.prompt_tokens
    assert chat(url, tools=[TOOL]).usage.prompt_tokens > plain
    assert chat(url, tools=[TOOL], tool_choice="none").usage.prompt_tokens == plain


def test_tools_that_the_template_would_hide_are_refused(engine: EmbeddedEngine) -> None:
    hides = Renderer(tokenizer(HIDES_TOOLS))
    with running_server(engine, hides) as url:
        with pytest.raises(openai.BadRequestError, match=r'tools: .*or tool_style = "text"'):
            chat(url, tools=[TOOL])
        plain = chat(url).usage.prompt_tokens
    with running_server(engine, Renderer(tokenizer(HIDES_TOOLS), tool_style="text")) as url:
        assert chat(url, tools=[TOOL]).usage.prompt_tokens > plain


def test_a_seed_makes_a_chat_answer_again(url: str) -> None:
    def ids(seed: int) -> Any:
        return chat(url, seed=seed, temperature=50.0, extra_body=RAW).choices[0].token_ids

    assert ids(5) == ids(5)
    assert ids(5) != ids(6)


def test_a_chat_answer_may_use_all_the_room(url: str, engine: EmbeddedEngine) -> None:
    asked = {"messages": LONG, "temperature": 50.0, "extra_body": {"stop_token_ids": [-1]}}
    usage = chat(url, max_tokens=None, **asked).usage
    assert usage.total_tokens == engine.max_seq_len
    few = chat(url, max_tokens=None, max_completion_tokens=3, extra_body=RAW)
    assert few.usage.completion_tokens == 3


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ({"logit_bias": {"5": 1}}, 400, "logit_bias: Extra inputs are not permitted"),
        ({"best_of": 3}, 400, "best_of"),
        ({"presence_penalty": 0.5}, 400, "presence_penalty"),
        ({"temperature": -1}, 400, "temperature"),
        ({"top_p": 0}, 400, "top_p"),
        ({"n": 0}, 400, "n: "),
        ({"stop": ""}, 400, "stop"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"stream": True, "logprobs": 1}, 400, "stream cannot be combined"),
        ({"stream": True, "return_token_ids": True}, 400, "stream cannot be combined"),
        ({"model": "huge"}, 404, "'huge' is not served here; this is 'tiny'"),
        ({"prompt": [1, 512]}, 400, r"token ids must be in \[0, 512\)"),
        ({"prompt": [-1]}, 400, "token ids must be in"),
        ({"prompt": []}, 400, "empty"),
        ({"prompt": ""}, 400, "empty"),
        ({"prompt": [5] * 600}, 400, "the prompt has 600 tokens and the answer may have 8, but"),
        ({"prompt": [5] * 505}, 400, "maximum context length is 512"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    url: str, body: dict[str, Any], status: int, reason: str
) -> None:
    with pytest.raises(openai.APIStatusError, match=reason) as caught:
        complete(url, extra_body=body)
    assert caught.value.status_code == status
    assert caught.value.type == "invalid_request_error"


def test_a_chat_that_asks_for_more_than_the_context_gets_what_it_leaves(url: str) -> None:
    asked = {"messages": LONG, "max_tokens": 10**6, "seed": 1, "temperature": 1.0}
    cut = chat(url, extra_body=asked | {"stop_token_ids": [-1], "return_token_ids": True})
    assert cut.usage.total_tokens == 512
    assert cut.choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "messages"),
        ([{"role": "wizard", "content": "x"}], "'wizard' is not one of"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "holds no image"),
        ([{"role": "assistant", "tool_calls": [{"id": "1"}]}], "function"),
        ([{"role": "assistant", "tool_calls": [5]}], "messages"),
        ([{"role": "user", "content": "x" * 3000}], "maximum context length is 512"),
    ],
)
def test_bad_messages_are_refused(url: str, messages: list[Any], reason: str) -> None:
    body = json.dumps({"model": "tiny", "messages": messages})
    status, answer = post(url, "/chat/completions", body)
    assert status == 400
    assert reason in answer["error"]["message"]


@pytest.mark.parametrize("body", ["", "{", "[]", "5", '{"prompt": "x"}'])
def test_a_body_that_is_no_request_is_refused(url: str, body: str) -> None:
    status, answer = post(url, "/completions", body)
    assert status == 400
    assert answer["error"]["message"]


def test_health_tells_the_version(url: str, engine: EmbeddedEngine) -> None:
    status, answer = get(url.removesuffix("/v1") + "/health")
    assert (status, answer) == (200, {"status": "ok", "weight_version": engine.version})


def test_the_tokens_sampled_are_counted_also_before_a_request_ends(url: str) -> None:
    """By this a client knows that a long answer, or the queue, moves on."""

    async def main() -> None:
        client = JsonClient(url)
        before = await processed_tokens(client) or 0.0
        sampler = TokenClient.to(client.base_url, "tiny")
        asking = asyncio.create_task(sampler.complete([5, 6, 7], Sampling(100), [-1]))
        seen = {before}
        while not asking.done():
            seen.add(await processed_tokens(client) or 0.0)
        assert max(seen) > min(seen - {before}) > before
        assert len((await asking).token_ids) == 100
        assert await processed_tokens(client) == before + 100
        await client.close()

    asyncio.run(main())


def test_a_port_in_use_is_named(url: str, engine: EmbeddedEngine) -> None:
    port = int(url.rsplit(":", 1)[1].removesuffix("/v1"))
    second = ServerThread(build_app(engine, RENDERER, "tiny"), port)
    with pytest.raises(EngineError, match=rf"port {port}; is it in use\?"):
        second.start()
    with pytest.raises(EngineError, match="server died"):
        second.check()
    assert get(url.removesuffix("/v1") + "/health")[0] == 200


def test_one_that_listens_everywhere_is_asked_where_others_reach_it(engine: EmbeddedEngine) -> None:
    app = build_app(engine, RENDERER, "tiny")
    for address, published in (("127.0.0.2", "127.0.0.2"), (None, "127.0.0.1")):
        server = ServerThread(app, host="0.0.0.0", address=address)
        server.start()
        try:
            assert server.base_url.startswith(f"http://{published}:")
            assert get(server.base_url.removesuffix("/v1") + "/health")[0] == 200
        finally:
            server.stop()
