"""Answers in OpenAI's format, whole or as the chunks of a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from vf.inference.embedded.answers import Answer, Job
from vf.inference.embedded.protocol import ChatRequest, CompletionRequest


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
        choice["token_ids"] = ids
        choice["weight_versions"] = answer.completion.versions
    return choice


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
    if body.return_token_ids:
        choice["token_ids"] = ids
        choice["weight_versions"] = answer.completion.versions
    return choice


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
    begin (``<``, mostly) an answer is kept until it is whole.
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
