"""A model that answers conversations in tokens: ids in, ids and logprobs out."""

from __future__ import annotations

import contextlib
import json
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from vf.inference.completions import Completion, TokenSampler
from vf.inference.model import ContextFull, Conversation, Reply, Sampling
from vf.inference.rendering.next_prompt import ThinkingHistory, new_images, next_prompt
from vf.inference.rendering.renderer import Renderer
from vf.inference.request_limits import off_loop
from vf.runtime.errors import ModelError
from vf.traces.images import Image
from vf.traces.trace import Branch, Fork

T = TypeVar("T")

_LONG = 16  # characters per token: several times as many as in any language
# Characters that rendering one costs as much as, at least.
_MESSAGE, _TOOL, _IMAGE = 64, 1024, 2**14


class PromptTooLong(ModelError):
    """The first prompt of a rollout is longer than ``max_prompt_len``: so is it in every other."""

    boundary = "prompt"


@dataclass(eq=False)
class TokenModel:
    """Answers conversations through a server that takes and returns token ids.

    Every branch of the conversation grows by exactly what was sent and sampled: the engine's
    ids and logprobs, never anything encoded again. A turn without an answer adds no tokens.

    Args:
        sampler: Continues token ids, usually on a server.
        renderer: Chat template and parser.
        max_seq_len: Most tokens in one context, prompt and completion together.
        max_prompt_len: Most tokens in the first prompt; None for no limit of its own.
        thinking_history: ``keep`` never drops sampled reasoning from the context. ``template``
            renders the conversation again each turn, as in deployment: the template decides which
            reasoning is kept, and the conversation forks where that rewrites history.
        sampling: The sampling settings where the caller of a rollout gives none.
        record_experts: Whether branches get the experts that the server used for their tokens.
    """

    sampler: TokenSampler
    renderer: Renderer
    _: KW_ONLY
    max_seq_len: int
    max_prompt_len: int | None = None
    thinking_history: ThinkingHistory = "keep"
    sampling: Sampling = field(default_factory=Sampling)
    record_experts: bool = False

    async def respond(self, conversation: Conversation, sampling: Sampling) -> Reply:
        """Extend the last branch (or fork) to the next prompt, and sample an answer.

        Raises:
            ModelError: If the server failed, or its answer is incomplete.
            PromptTooLong: If the first prompt is over ``max_prompt_len``.
            ContextFull: If the context has no room for one more token.
        """
        branch, context, images, fork = await _in_turn(conversation, self._next_prompt)
        prompt_ids = branch.token_ids + context
        room = self.max_seq_len - len(prompt_ids)
        if room < 1:
            raise ContextFull(len(prompt_ids), self.max_seq_len)
        completion = await self.sampler.complete(
            prompt_ids,
            sampling.with_(
                max_tokens=min(room, sampling.max_tokens),
                structure=_structure(conversation.options.get("response_format")),
                experts_from=len(branch.experts) if self.record_experts else None,
                images=(*branch.images, *images),
            ),
            self.renderer.stop_token_ids,
            conversation.key,
        )
        completion, text, stop = self._stopped(completion, sampling.stop)
        ids = completion.token_ids
        message = self.renderer.parse_text(
            text, prompt_ids=prompt_ids, turn=conversation.turn, tools=conversation.tools
        )
        if fork is not None:
            conversation.forks.append(fork)
        if not branch.token_ids:
            conversation.branches.append(branch)
        branch.add_context(context, conversation.turn, images)
        logprobs, versions, supports = (
            completion.logprobs,
            completion.versions,
            completion.supports,
        )
        branch.add_sampled(ids, logprobs, versions, conversation.turn, supports)
        branch.experts += completion.experts
        # The runner appends the answer: counting it here keeps it from being rendered again.
        conversation.encoded = len(conversation.messages) + 1
        conversation.fork = None
        return Reply(message, completion.finish_reason or "stop", len(prompt_ids), len(ids), stop)

    def prompt_tokens(self, conversation: Conversation) -> int:
        """Return how many tokens the next prompt of a conversation has.

        Raises:
            ConfigError: If the template refuses the conversation.
            Unrenderable: If the template refuses what the model has caused.
            ContextFull: If the conversation is many times longer than the context.
        """
        self._check_length(conversation)
        branch, context, _ = next_prompt(self.renderer, conversation, self.thinking_history)
        return len(branch) + len(context)

    async def count_prompt(self, conversation: Conversation) -> int:
        """Return :meth:`prompt_tokens`, and hold up the event loop no longer than ``respond``."""
        return await _in_turn(conversation, self.prompt_tokens)

    def _stopped(
        self, completion: Completion, stop: Sequence[str]
    ) -> tuple[Completion, str, str | None]:
        """Return what sampling would have given had it ended at the first stop text.

        Servers do not agree on how many tokens behind a stop text they return.

        Returns:
            The completion, its text, and the stop text that ended it, or None.
        """
        ids, read = completion.token_ids, self.renderer.answer_text
        text = read(ids)
        if not any(end in text for end in stop):
            return completion, text, None

        def holds_one(count: int) -> bool:
            so_far = read(ids[:count])
            return any(end in so_far for end in stop)

        count = bisect_left(range(len(ids)), True, lo=1, key=holds_one)
        text = read(ids[:count])
        start, first = min((start, end) for end in stop if (start := text.find(end)) >= 0)
        cut = replace(
            completion,
            token_ids=ids[:count],
            logprobs=completion.logprobs[:count],
            versions=completion.versions[:count],
            supports=completion.supports[:count],
            finish_reason="stop",
            experts=completion.experts[: len(completion.experts) - (len(ids) - count)],
        )
        return cut, text[:start], first

    def _check_length(self, conversation: Conversation) -> None:
        """Raise ContextFull if the new messages are many times longer than the context.

        A tokenizer takes seconds for ten megabytes, and nothing else of this process runs then.
        """
        new = [message.content for message in conversation.messages[conversation.encoded :]]
        if not conversation.encoded:
            new += map(json.dumps, conversation.tools)
        if sum(map(len, new)) > _LONG * self.max_seq_len:
            least = self.renderer.at_least(new, self.max_seq_len)
            if least > self.max_seq_len:
                raise ContextFull(least, self.max_seq_len)

    def _next_prompt(
        self, conversation: Conversation
    ) -> tuple[Branch, list[int], list[Image], Fork | None]:
        self._check_length(conversation)
        branch, context, fork = next_prompt(self.renderer, conversation, self.thinking_history)
        limit = self.max_prompt_len
        first = not conversation.branches and fork is None  # else the policy has a part in it
        if first and limit is not None and len(context) > limit:
            raise PromptTooLong(
                f"the first prompt has {len(context)} tokens, over max_prompt_len = {limit}"
            )
        return branch, context, new_images(self.renderer, conversation, branch, context), fork


def _new_text(conversation: Conversation) -> int:
    """Return about how many characters the next prompt adds."""
    new = conversation.messages[0 if conversation.fork else conversation.encoded :]
    tools = 0 if conversation.encoded else _TOOL * len(conversation.tools)
    images = _IMAGE * sum(len(message.images) for message in new)
    return sum(_MESSAGE + len(message.content) for message in new) + tools + images


async def _in_turn(conversation: Conversation, render: Callable[[Conversation], T]) -> T:
    """Render a conversation when it is its turn, in a thread where that takes a while."""
    async with conversation.rendering or contextlib.nullcontext():
        return await off_loop(_new_text(conversation), partial(render, conversation))


def _structure(response_format: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return OpenAI's ``response_format`` as vLLM has it where it takes token ids."""
    match response_format:
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return {"json": schema}
        case {"type": "json_object"}:
            return {"json_object": True}
    return None
