"""One request to the embedded server, from its parameters to its answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal

from vf.inference.completions import Completion
from vf.inference.embedded.embedded_engine import EmbeddedEngine
from vf.inference.embedded.requests import ChatRequest, CompletionRequest, SamplingFields
from vf.inference.experts import encode_experts
from vf.inference.model import Sampling
from vf.inference.rendering.renderer import Renderer
from vf.traces.images import Image
from vf.traces.packed import pack_supports


@dataclass(frozen=True, slots=True)
class Answer:
    """One choice: what was sampled, its text, and why it ended (None while it is unfinished)."""

    completion: Completion
    text: str
    finish_reason: Literal["stop", "length"] | None


@dataclass(frozen=True, slots=True)
class Job:
    """A checked request: all that is needed to sample its choices.

    Attributes:
        engine: Who samples.
        renderer: Turns ids into text.
        body: The request as it came.
        prompt_ids: The prompt.
        max_tokens: Most tokens to sample for a choice.
        stops: Token ids that end a choice.
        images: The images of the prompt; see :class:`~vf.inference.model.Sampling`.
    """

    engine: EmbeddedEngine
    renderer: Renderer
    body: SamplingFields
    prompt_ids: list[int]
    max_tokens: int
    stops: list[int]
    images: tuple[Image, ...] = ()

    async def answers(self) -> list[Answer]:
        """Sample all choices concurrently; if one fails, the others are cancelled.

        Raises:
            EngineError: If the engine died or refused the request.
        """
        tasks = [asyncio.create_task(self._answer(index)) for index in range(self.body.n)]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def growing(self, index: int) -> AsyncGenerator[Answer, None]:
        """Yield one choice after every token; it ends at the first stop string.

        Raises:
            EngineError: If the engine died or refused the request.
        """
        sampling = self._sampling(index)
        async with aclosing(self.engine.stream(self.prompt_ids, sampling, self.stops)) as stream:
            async for completion in stream:
                answer = self._read(completion)
                yield answer
                if answer.finish_reason is not None:
                    return

    async def _answer(self, index: int) -> Answer:
        if not self.body.stop_strings():
            sampling = self._sampling(index)
            return self._read(await self.engine.generate(self.prompt_ids, sampling, self.stops))
        async with aclosing(self.growing(index)) as answers:
            async for answer in answers:
                last = answer
        return last

    def _sampling(self, index: int) -> Sampling:
        return self.body.sampling(self.max_tokens, index).with_(images=self.images)

    def _read(self, completion: Completion) -> Answer:
        ids = completion.token_ids
        text = self.renderer.decode(ids[:-1] if ids and ids[-1] in self.stops else ids)
        stops = self.body.stop_strings()
        matches = [(index, stop) for stop in stops if (index := text.find(stop)) >= 0]
        if matches:
            index, stop = min(matches)
            shown = index + len(stop) if self.body.include_stop_str_in_output else index
            return Answer(completion, text[:shown], "stop")
        return Answer(completion, text, completion.finish_reason)


def completion_choice(
    job: Job, body: CompletionRequest, index: int, answer: Answer
) -> dict[str, Any]:
    """Return one choice of ``/v1/completions``."""
    choice = _choice(index, answer.finish_reason, text=answer.text)
    ids = answer.completion.token_ids
    if body.logprobs is not None:
        choice["logprobs"] = {
            "tokens": job.renderer.tokenizer.convert_ids_to_tokens(ids),
            "token_logprobs": answer.completion.logprobs,
            "top_logprobs": None,
            "text_offset": [],
        }
    if body.return_token_ids:
        choice["prompt_token_ids"] = job.prompt_ids
    return choice | _tokens(body, answer.completion)


def chat_choice(job: Job, body: ChatRequest, index: int, answer: Answer) -> dict[str, Any]:
    """Return one choice of ``/v1/chat/completions``."""
    # The number of messages makes the ids of tool calls differ from turn to turn.
    message = job.renderer.parse_text(
        answer.text,
        prompt_ids=job.prompt_ids,
        turn=len(body.messages),
        tools=body.tools or (),
    )
    raw = message.to_openai()
    raw["content"] = raw["content"] or None
    called = message.tool_calls and answer.finish_reason == "stop"
    choice = _choice(index, "tool_calls" if called else answer.finish_reason, message=raw)
    ids = answer.completion.token_ids
    if body.logprobs:
        tokens = job.renderer.tokenizer.convert_ids_to_tokens(ids)
        choice["logprobs"] = {
            "content": [
                {"token": token, "logprob": logprob, "bytes": None, "top_logprobs": []}
                for token, logprob in zip(tokens, answer.completion.logprobs, strict=True)
            ]
        }
    return choice | _tokens(body, answer.completion)


def _tokens(body: SamplingFields, completion: Completion) -> dict[str, Any]:
    """Return what a request wants to know of the tokens, beside their log-probabilities."""
    fields: dict[str, Any] = {}
    if body.return_token_ids:
        fields |= {"token_ids": completion.token_ids, "weight_versions": completion.versions}
        if any(completion.supports):
            fields["supports"] = pack_supports(completion.supports)
    if body.routed_experts_prompt_start is not None:
        fields["routed_experts"] = encode_experts(completion.experts)
    return fields


async def completion_chunks(
    job: Job, body: CompletionRequest, head: dict[str, Any]
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the chunks of a streamed completion, choice after choice."""
    for index in range(body.n):
        sent = 0
        async with aclosing(job.growing(index)) as answers:
            async for answer in answers:
                upto = max(sent, _safe_end(answer, body.stop_strings()))
                if upto > sent or answer.finish_reason:
                    text = answer.text[sent:upto]
                    yield {**head, "choices": [_choice(index, answer.finish_reason, text=text)]}
                sent = upto


async def chat_chunks(
    job: Job, body: ChatRequest, head: dict[str, Any]
) -> AsyncGenerator[dict[str, Any], None]:
    """Yield the chunks of a streamed chat answer, choice after choice.

    Text is sent as it comes; from the first character on with which reasoning or a tool call may
    begin (``<``, usually) an answer is kept until it is whole.
    """

    def chunk(index: int, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        return {**head, "choices": [_choice(index, reason, delta=delta)]}

    finished, marks = [], set(job.renderer.parser.marks)
    for index in range(body.n):
        yield chunk(index, {"role": "assistant", "content": ""})
        sent, structured = 0, job.renderer.opens_reasoning(job.prompt_ids)
        async with aclosing(job.growing(index)) as answers:
            async for answer in answers:
                structured = structured or not marks.isdisjoint(answer.text)
                upto = _safe_end(answer, body.stop_strings())
                if not structured and upto > sent:
                    yield chunk(index, {"content": answer.text[sent:upto]})
                    sent = upto
        finished.append(answer)
        choice = chat_choice(job, body, index, answer)
        message = choice["message"]
        delta = {key: message[key] for key in ("reasoning_content", "tool_calls") if key in message}
        for position, call in enumerate(delta.get("tool_calls", ())):
            call["index"] = position
        if structured:
            # The content has been stripped, what was sent has not.
            rest = (message["content"] or "")[len(answer.text[:sent].lstrip()) :]
            delta |= {"content": rest} if rest else {}
        yield chunk(index, delta, choice["finish_reason"])
    if body.stream_options and body.stream_options.include_usage:
        yield {**head, "choices": [], "usage": usage(job, finished)}


def usage(job: Job, answers: list[Answer]) -> dict[str, int]:
    """Return OpenAI's token counts for all choices of a request."""
    prompt = len(job.prompt_ids)
    sampled = sum(len(answer.completion.token_ids) for answer in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
    }


def _choice(index: int, reason: str | None, **content: Any) -> dict[str, Any]:
    return {"index": index, **content, "finish_reason": reason, "logprobs": None}


def _safe_end(answer: Answer, strings: list[str]) -> int:
    """Return how much of a growing text can be sent: not half a character or stop string."""
    if answer.finish_reason is not None:
        return len(answer.text)
    hold = max((len(string) - 1 for string in strings), default=0)
    return len(answer.text.rstrip("\ufffd")) - hold
