"""The embedded engine's HTTP face: a small Starlette app that the OpenAI client works against."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from vf.inference.embedded.engine import Completion, EmbeddedEngine
from vf.inference.embedded.protocol import ChatRequest, CompletionRequest, SamplingFields
from vf.inference.renderer import Renderer
from vf.traces.errors import ConfigError, EngineError
from vf.traces.messages import Message

R = TypeVar("R", bound=SamplingFields)


class Refused(Exception):
    """The request is wrong, and the text says how."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Answer:
    """One choice: what was sampled, its text, and why it ended."""

    completion: Completion
    text: str
    finish_reason: Literal["stop", "length"] | None


def build_app(engine: EmbeddedEngine, renderer: Renderer, model: str) -> Starlette:
    """Return the ASGI app that serves ``engine`` under the name ``model``."""
    server = _Server(engine, renderer, model)
    return Starlette(
        routes=[
            Route("/health", server.health),
            Route("/v1/models", server.models),
            Route("/v1/completions", server.guard(server.completions), methods=["POST"]),
            Route("/v1/chat/completions", server.guard(server.chat), methods=["POST"]),
        ]
    )


class _Server:
    def __init__(self, engine: EmbeddedEngine, renderer: Renderer, model: str) -> None:
        self.engine = engine
        self.renderer = renderer
        self.model = model

    async def health(self, request: Request) -> Response:
        try:
            self.engine.check()
        except EngineError as error:
            return _error(str(error), 503)
        return JSONResponse({"status": "ok", "weight_version": self.engine.version})

    async def models(self, request: Request) -> Response:
        card = {
            "id": self.model,
            "object": "model",
            "created": 0,
            "owned_by": "vf-rl",
            "max_model_len": self.engine.max_seq_len,
            "weight_version": self.engine.version,
        }
        return JSONResponse({"object": "list", "data": [card]})

    def guard(
        self, handler: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Turn what a handler raises into OpenAI-style errors."""

        async def guarded(request: Request) -> Response:
            try:
                return await handler(request)
            except Refused as error:
                return _error(str(error), error.status)
            except EngineError as error:
                return _error(str(error), 503)

        return guarded

    async def completions(self, request: Request) -> Response:
        body = self._parse(CompletionRequest, await request.body())
        prompt = body.prompt
        prompt_ids = (
            list(self.renderer.tokenizer.encode(prompt)) if isinstance(prompt, str) else prompt
        )
        budget = self._budget(prompt_ids, body.max_tokens)
        stops = body.stop_token_ids or self.renderer.stop_token_ids
        head = self._head("cmpl", "text_completion")
        if body.stream:
            return self._stream(self._completion_chunks(body, prompt_ids, budget, stops, head))
        answers = await self._answers(request, body, prompt_ids, budget, stops)
        choices = [self._completion_choice(body, i, a) for i, a in enumerate(answers)]
        if body.return_token_ids:
            for choice in choices:
                choice["prompt_token_ids"] = prompt_ids
        return JSONResponse({**head, "choices": choices, "usage": _usage(prompt_ids, answers)})

    async def chat(self, request: Request) -> Response:
        body = self._parse(ChatRequest, await request.body())
        tools = [] if body.tool_choice == "none" else body.tools or []
        try:
            messages = [Message.from_openai(raw) for raw in body.messages]
            prompt_ids = self.renderer.prompt(messages, tools)
        except (ConfigError, KeyError, TypeError) as error:
            raise Refused(f"messages: {error}") from error
        wanted = body.max_completion_tokens or body.max_tokens
        budget = self._budget(prompt_ids, wanted)
        stops = body.stop_token_ids or self.renderer.stop_token_ids
        if body.stream:
            head = self._head("chatcmpl", "chat.completion.chunk")
            return self._stream(self._chat_chunks(body, prompt_ids, budget, stops, head))
        answers = await self._answers(request, body, prompt_ids, budget, stops)
        choices = [self._chat_choice(body, i, a, prompt_ids) for i, a in enumerate(answers)]
        head = self._head("chatcmpl", "chat.completion")
        return JSONResponse({**head, "choices": choices, "usage": _usage(prompt_ids, answers)})

    def _parse(self, kind: type[R], raw: bytes) -> R:
        try:
            body = kind.model_validate_json(raw)
        except ValidationError as error:
            problems = "; ".join(
                f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in error.errors()
            )
            raise Refused(problems) from error
        if body.model != self.model:
            raise Refused(f"model {body.model!r} is not served here; this is {self.model!r}", 404)
        return body

    def _budget(self, prompt_ids: list[int], wanted: int | None) -> int:
        """Return how many tokens may be sampled."""
        vocabulary = self.engine.model.config.get_text_config().vocab_size
        if not all(0 <= token < vocabulary for token in prompt_ids):
            raise Refused(f"prompt: token ids must be in [0, {vocabulary})")
        room = self.engine.max_seq_len - len(prompt_ids)
        if room < (wanted or 1):
            raise Refused(
                f"the prompt has {len(prompt_ids)} tokens and max_tokens is {wanted or 1}, but "
                f"the context holds {self.engine.max_seq_len}"
            )
        return wanted or room

    async def _answers(
        self,
        request: Request,
        body: SamplingFields,
        prompt_ids: list[int],
        budget: int,
        stops: list[int],
    ) -> list[Answer]:
        """Sample all choices at once; stop if the client goes away."""

        async def one(index: int) -> Answer:
            sampling = body.sampling(budget, index)
            if not body.stop:
                completion = await self.engine.generate(prompt_ids, sampling, stops)
                return self._answer(completion, stops, [])
            async for answer in self._stopped(prompt_ids, body, index, budget, stops):
                last = answer
            return last

        work = asyncio.gather(*(one(index) for index in range(body.n)))
        gone = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise Refused("the client went away", 499)
            return work.result()
        finally:
            work.cancel()
            gone.cancel()

    async def _stopped(
        self,
        prompt_ids: list[int],
        body: SamplingFields,
        index: int,
        budget: int,
        stops: list[int],
    ) -> AsyncIterator[Answer]:
        """Yield the growing answer, ending it at the first stop string."""
        stream = self.engine.stream(prompt_ids, body.sampling(budget, index), stops)
        async for completion in stream:
            answer = self._answer(completion, stops, body.stop_strings())
            yield answer
            if answer.finish_reason is not None:
                break
        await stream.aclose()  # type: ignore[attr-defined]

    def _answer(self, completion: Completion, stops: list[int], strings: list[str]) -> Answer:
        ids = completion.token_ids
        text = self.renderer.decode(ids[:-1] if ids and ids[-1] in stops else ids)
        places = [place for place in map(text.find, strings) if place >= 0]
        if places:
            return Answer(completion, text[: min(places)], "stop")
        return Answer(completion, text, completion.finish_reason)

    def _completion_choice(
        self, body: CompletionRequest, index: int, answer: Answer
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": index,
            "text": answer.text,
            "finish_reason": answer.finish_reason,
            "logprobs": None,
        }
        ids = answer.completion.token_ids
        if body.logprobs is not None:
            choice["logprobs"] = {
                "tokens": self.renderer.tokenizer.convert_ids_to_tokens(ids),
                "token_logprobs": answer.completion.logprobs,
                "top_logprobs": None,
                "text_offset": [],
            }
        if body.return_token_ids:
            choice["token_ids"] = ids
            choice["weight_versions"] = answer.completion.versions
        return choice

    def _chat_choice(
        self, body: ChatRequest, index: int, answer: Answer, prompt_ids: list[int]
    ) -> dict[str, Any]:
        ids = answer.completion.token_ids
        message = self.renderer.parse_text(answer.text, prompt_ids=prompt_ids, turn=index)
        raw = message.to_openai()
        raw["content"] = raw["content"] or None
        choice: dict[str, Any] = {
            "index": index,
            "message": raw,
            "finish_reason": "tool_calls" if message.tool_calls else answer.finish_reason,
            "logprobs": None,
        }
        if body.logprobs:
            tokens = self.renderer.tokenizer.convert_ids_to_tokens(ids)
            choice["logprobs"] = {
                "content": [
                    {"token": token, "logprob": logprob, "bytes": None, "top_logprobs": []}
                    for token, logprob in zip(tokens, answer.completion.logprobs, strict=True)
                ]
            }
        if body.return_token_ids:
            choice["token_ids"] = ids
            choice["weight_versions"] = answer.completion.versions
        return choice

    async def _completion_chunks(
        self,
        body: CompletionRequest,
        prompt_ids: list[int],
        budget: int,
        stops: list[int],
        head: dict[str, Any],
    ) -> AsyncIterator[dict[str, Any]]:
        for index in range(body.n):
            sent = 0
            async for answer in self._stopped(prompt_ids, body, index, budget, stops):
                upto = _safe_end(answer, body.stop_strings())
                choice = {
                    "index": index,
                    "text": answer.text[sent:upto],
                    "finish_reason": answer.finish_reason,
                    "logprobs": None,
                }
                sent = max(sent, upto)
                if choice["text"] or answer.finish_reason:
                    yield {**head, "choices": [choice]}

    async def _chat_chunks(
        self,
        body: ChatRequest,
        prompt_ids: list[int],
        budget: int,
        stops: list[int],
        head: dict[str, Any],
    ) -> AsyncIterator[dict[str, Any]]:
        """Stream text as it comes; an answer with tool calls or reasoning is sent once whole."""

        def chunk(index: int, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
            choice = {"index": index, "delta": delta, "finish_reason": reason, "logprobs": None}
            return {**head, "choices": [choice]}

        answers = []
        for index in range(body.n):
            yield chunk(index, {"role": "assistant", "content": ""})
            sent, structured = 0, False
            async for answer in self._stopped(prompt_ids, body, index, budget, stops):
                structured = structured or "<" in answer.text
                upto = _safe_end(answer, body.stop_strings())
                if not structured and upto > sent:
                    yield chunk(index, {"content": answer.text[sent:upto]})
                    sent = upto
            answers.append(answer)
            full = self._chat_choice(body, index, answer, prompt_ids)
            delta = {
                key: full["message"][key]
                for key in ("reasoning_content", "tool_calls")
                if key in full["message"]
            }
            for position, call in enumerate(delta.get("tool_calls", ())):
                call["index"] = position
            if structured:
                rest = (full["message"]["content"] or "")[sent:]
                delta |= {"content": rest} if rest else {}
            yield chunk(index, delta, full["finish_reason"])
        if body.stream_options and body.stream_options.include_usage:
            yield {**head, "choices": [], "usage": _usage(prompt_ids, answers)}

    def _stream(self, chunks: AsyncIterator[dict[str, Any]]) -> Response:
        async def lines() -> AsyncIterator[str]:
            async for chunk in chunks:
                yield f"data: {json.dumps(chunk)}\n\n"
            yield "data: [DONE]\n\n"

        return StreamingResponse(lines(), media_type="text/event-stream")

    def _head(self, prefix: str, kind: str) -> dict[str, Any]:
        return {
            "id": f"{prefix}-{uuid.uuid4().hex}",
            "object": kind,
            "created": int(time.time()),
            "model": self.model,
            "weight_version": self.engine.version,
        }


def _safe_end(answer: Answer, strings: list[str]) -> int:
    """Return how much of a growing text can be sent: not half a character or stop string."""
    if answer.finish_reason is not None:
        return len(answer.text)
    hold = max((len(string) - 1 for string in strings), default=0)
    return len(answer.text.rstrip("\ufffd")) - hold


def _usage(prompt_ids: list[int], answers: list[Answer]) -> dict[str, int]:
    sampled = sum(len(answer.completion.token_ids) for answer in answers)
    return {
        "prompt_tokens": len(prompt_ids),
        "completion_tokens": sampled,
        "total_tokens": len(prompt_ids) + sampled,
    }


def _error(message: str, status: int) -> JSONResponse:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    body = {"error": {"message": message, "type": kind, "param": None, "code": status}}
    return JSONResponse(body, status_code=status)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
