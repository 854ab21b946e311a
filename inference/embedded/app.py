"""The embedded engine's HTTP face: a small Starlette app that the OpenAI client works against."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from vf.inference.embedded.answers import (
    Answer,
    Job,
    chat_choice,
    chat_chunks,
    completion_choice,
    completion_chunks,
    usage,
)
from vf.inference.embedded.embedded_engine import EmbeddedEngine
from vf.inference.embedded.requests import ChatRequest, CompletionRequest, SamplingFields
from vf.inference.rendering.renderer import Renderer
from vf.inference.rendering.template_probe import HIDES_TOOLS, shows_tools
from vf.inference.rendering.vision import images_of
from vf.inference.request_limits import most_bytes, off_loop
from vf.inference.wire import field_name
from vf.runtime.errors import ConfigError, EngineError
from vf.runtime.http_door import Door, Refused
from vf.traces.messages import Message

R = TypeVar("R", bound=SamplingFields)


MOST_PROBLEMS = 100  # of a body that an answer names
CHARACTERS = 16  # of a token: several times as many as in any language


def build_app(
    engine: EmbeddedEngine, renderer: Renderer, model: str, host: str = "127.0.0.1"
) -> Starlette:
    """Return the ASGI app that serves ``engine`` under the name ``model`` on ``host``."""
    server = _Server(engine, renderer, model)
    return Starlette(
        middleware=[Middleware(Door, host=host, most=most_bytes(engine.max_seq_len))],
        routes=[
            Route("/health", server.health),
            Route("/metrics", server.metrics),
            Route("/v1/models", server.models),
            Route("/v1/completions", server.guard(server.completions), methods=["POST"]),
            Route("/v1/chat/completions", server.guard(server.chat), methods=["POST"]),
        ],
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

    async def metrics(self, request: Request) -> Response:
        name = "vf:generation_tokens_total"
        return PlainTextResponse(f"# TYPE {name} counter\n{name} {self.engine.sampled}\n")

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
                self.engine.check()
                return await handler(request)
            except Refused as error:
                return _error(str(error), error.status)
            except EngineError as error:
                return _error(str(error), 503)

        return guarded

    async def completions(self, request: Request) -> Response:
        raw = await request.body()
        body, job = await off_loop(len(raw), lambda: self._completion(raw))
        head = self._head("cmpl", "text_completion")
        if body.stream:
            return _stream(completion_chunks(job, body, head))
        answers = await _unless_gone(request, job)
        choices = [completion_choice(job, body, i, answer) for i, answer in enumerate(answers)]
        return JSONResponse({**head, "choices": choices, "usage": usage(job, answers)})

    async def chat(self, request: Request) -> Response:
        raw = await request.body()
        body, job = await off_loop(len(raw), lambda: self._chat(raw))
        if body.stream:
            head = self._head("chatcmpl", "chat.completion.chunk")
            return _stream(chat_chunks(job, body, head))
        answers = await _unless_gone(request, job)
        choices = [chat_choice(job, body, i, answer) for i, answer in enumerate(answers)]
        head = self._head("chatcmpl", "chat.completion")
        return JSONResponse({**head, "choices": choices, "usage": usage(job, answers)})

    def _completion(self, raw: bytes) -> tuple[CompletionRequest, Job]:
        body = self._parse(CompletionRequest, raw)
        prompt = body.prompt
        if isinstance(prompt, str):
            self._check_length([prompt])
            prompt = list(self.renderer.tokenizer.encode(prompt))
        return body, self._job(body, prompt, body.max_tokens, body.max_tokens)

    def _chat(self, raw: bytes) -> tuple[ChatRequest, Job]:
        body = self._parse(ChatRequest, raw)
        tools = [] if body.tool_choice == "none" else body.tools or []
        for number, tool in enumerate(tools):
            function = tool.get("function")
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                raise Refused(f"tools.{number}.function.name: it must be a text", 400)
        try:
            if tools and self._hides_tools:
                raise Refused(f"tools: {HIDES_TOOLS}", 400)
            messages = [Message.from_openai(message) for message in body.messages]
            contents = (message.content for message in messages)
            self._check_length([*contents, *map(json.dumps, tools)])
            prompt_ids, images = self.renderer.prompt(messages, tools), images_of(messages)
            if self.renderer.vision is not None:
                images = self.renderer.vision.placed(prompt_ids, images, 0)
        except (ConfigError, AttributeError, KeyError, TypeError) as error:
            raise Refused(f"messages: {error}", 400) from error
        most = body.max_completion_tokens or body.max_tokens
        return body, replace(self._job(body, prompt_ids, 1, most), images=tuple(images))

    def _check_length(self, texts: list[str]) -> None:
        """Refuse texts that are many times longer than the context, before all is tokenized."""
        context = self.engine.max_seq_len
        if sum(map(len, texts)) > CHARACTERS * context:
            least = self.renderer.at_least(texts, context)
            if least > context:
                raise Refused(
                    f"the prompt has more than {least} tokens, but this model's maximum context "
                    f"length is {context} tokens",
                    400,
                )

    @cached_property
    def _hides_tools(self) -> bool:
        return not shows_tools(self.renderer)

    def _parse(self, kind: type[R], raw: bytes) -> R:
        try:
            body = kind.model_validate_json(raw)
        except ValidationError as error:
            raise Refused(problems(error), 400) from None
        if body.model != self.model:
            raise Refused(f"model {body.model!r} is not served here; this is {self.model!r}", 404)
        return body

    def _job(
        self, body: SamplingFields, prompt_ids: list[int], least: int, most: int | None
    ) -> Job:
        """Check the prompt against the vocabulary and the context, and fill in the defaults.

        Args:
            body: The request.
            prompt_ids: Its prompt.
            least: Tokens that the context must have room for after the prompt. A client that sends
                a chat does not know how many tokens its prompt has, so its ``max_tokens`` is cut.
            most: Tokens to sample at most; None for all that there is room for.
        """
        vocabulary = self.engine.model.config.get_text_config().vocab_size
        if not prompt_ids:
            raise Refused("prompt: it is empty", 400)
        if not all(0 <= token < vocabulary for token in prompt_ids):
            raise Refused(f"prompt: token ids must be in [0, {vocabulary})", 400)
        room = self.engine.max_seq_len - len(prompt_ids)
        if room < least:
            raise Refused(
                f"the prompt has {len(prompt_ids)} tokens and the answer may have {least}, but "
                f"this model's maximum context length is {self.engine.max_seq_len} tokens",
                400,
            )
        stops = body.stop_token_ids or self.renderer.stop_token_ids
        return Job(self.engine, self.renderer, body, prompt_ids, min(most or room, room), stops)

    def _head(self, prefix: str, kind: str) -> dict[str, Any]:
        return {
            "id": f"{prefix}-{uuid.uuid4().hex}",
            "object": kind,
            "created": int(time.time()),
            "model": self.model,
            "weight_version": self.engine.version,
        }


async def _unless_gone(request: Request, job: Job) -> list[Answer]:
    """Sample all choices; stop if the client goes away."""
    work = asyncio.create_task(job.answers())
    gone = asyncio.create_task(_disconnected(request))
    both: set[asyncio.Task[Any]] = {work, gone}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise Refused("the client went away", 499)
        return work.result()
    finally:
        work.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _stream(chunks: AsyncGenerator[dict[str, Any], None]) -> Response:
    async def lines() -> AsyncIterator[str]:
        async with aclosing(chunks):
            async for chunk in chunks:
                yield f"data: {json.dumps(chunk)}\n\n"
        yield "data: [DONE]\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream")


def problems(error: ValidationError) -> str:
    """Return what is wrong with a body; a body may have a hundred thousand problems."""
    count = error.error_count()
    if count > MOST_PROBLEMS:
        return f"body: {count:,} fields are unknown or have wrong values"
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    return "; ".join(f"{field_name(p['loc']) or 'body'}: {p['msg']}" for p in problems)


def _error(message: str, status: int) -> JSONResponse:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    body = {"error": {"message": message, "type": kind, "param": None, "code": status}}
    return JSONResponse(body, status_code=status)
