"""A model over ``/v1/completions``: token ids in, token ids and logprobs out."""

from __future__ import annotations

from typing import Any

from vf.inference.model import ContextFull, Conversation, Reply, Sampling
from vf.inference.renderer import BridgeError, Renderer
from vf.inference.wire import JsonClient
from vf.traces.errors import ConfigError, ModelError
from vf.traces.trace import Branch, Fork


class PromptTooLong(ModelError):
    """The first prompt of a rollout is longer than ``max_prompt_len``."""


class TokenModel:
    """Answers conversations through a server that takes and returns token ids.

    Every branch of the conversation grows by exactly what was sent and sampled: the engine's
    ids and the engine's logprobs, never anything encoded a second time. A turn that was not
    answered leaves no tokens behind.

    Args:
        client: The server.
        model: Its name on the server.
        renderer: Chat template and parser.
        max_seq_len: Most tokens in one context, prompt and completion together.
        max_prompt_len: Most tokens in the first prompt; None for no limit of its own.
    """

    def __init__(
        self,
        client: JsonClient,
        model: str,
        renderer: Renderer,
        *,
        max_seq_len: int,
        max_prompt_len: int | None = None,
    ) -> None:
        self._client = client
        self._model = model
        self._renderer = renderer
        self._max_seq_len = max_seq_len
        self._max_prompt_len = max_prompt_len

    async def respond(self, conversation: Conversation, sampling: Sampling) -> Reply:
        """Extend the last branch (or fork) to the next prompt, and sample an answer.

        Raises:
            ModelError: The server failed, or its answer is incomplete.
            PromptTooLong: The first prompt is over ``max_prompt_len``.
            ContextFull: The context has no room for one more token.
        """
        branch, context, fork = self._next_prompt(conversation)
        prompt_ids = branch.token_ids + context
        room = self._max_seq_len - len(prompt_ids)
        if room < 1:
            raise ContextFull
        answer = await self._client.post(
            "/completions", self._request(prompt_ids, sampling, min(room, sampling.max_tokens))
        )
        choice = _choice(answer)
        ids, logprobs, versions = choice["token_ids"], choice["logprobs"], choice["versions"]
        message = self._renderer.parse(ids, prompt_ids=prompt_ids, turn=conversation.turn)
        if fork is not None:
            conversation.forks.append(fork)
        if not branch.token_ids:
            conversation.branches.append(branch)
        branch.add_context(context, conversation.turn)
        branch.add_sampled(ids, logprobs, versions, conversation.turn)
        # The runner appends the answer: counting it here keeps it from being rendered again.
        conversation.encoded = len(conversation.messages) + 1
        return Reply(message, choice["finish_reason"], len(prompt_ids), len(ids))

    def _next_prompt(self, conversation: Conversation) -> tuple[Branch, list[int], Fork | None]:
        """Return the branch to grow, what to append to it, and a fork if it is a new one."""
        messages = conversation.messages
        if not conversation.branches:
            ids = self._renderer.prompt(messages, conversation.tools)
            if self._max_prompt_len is not None and len(ids) > self._max_prompt_len:
                raise PromptTooLong(
                    f"the first prompt has {len(ids)} tokens, over max_prompt_len = "
                    f"{self._max_prompt_len}"
                )
            return Branch(), ids, None
        branch, new = conversation.branches[-1], messages[conversation.encoded :]
        try:
            if not new:
                raise BridgeError("the environment added no message")
            bridge = self._renderer.bridge(
                messages[conversation.encoded - 1], new, conversation.tools
            )
        except BridgeError as error:
            return self._rerender(conversation, branch, str(error))
        # A turn that was cut off, or ended on another stop token, is closed for the model.
        closer = self._renderer.closer_id
        closed = branch.token_ids[-1] == closer
        return branch, bridge if closed else [closer, *bridge], None

    def _rerender(
        self, conversation: Conversation, branch: Branch, reason: str
    ) -> tuple[Branch, list[int], Fork | None]:
        """Render everything again; grow the branch if that happens to extend it, else fork."""
        try:
            ids = self._renderer.prompt(conversation.messages, conversation.tools)
        except ConfigError as error:
            # What the model said brought this about: it ends the rollout, not the run.
            raise ModelError(f"turn {conversation.turn} cannot be rendered: {error}") from error
        if ids[: len(branch)] == branch.token_ids:
            return branch, ids[len(branch) :], None
        return Branch(), ids, Fork(conversation.turn, reason)

    def _request(
        self, prompt_ids: list[int], sampling: Sampling, max_tokens: int
    ) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._model,
            "prompt": prompt_ids,
            "max_tokens": max_tokens,
            "temperature": sampling.temperature,
            "logprobs": 0,
            "return_token_ids": True,
            "stop_token_ids": self._renderer.stop_token_ids,
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if sampling.top_p != 1.0:
            body["top_p"] = sampling.top_p
        if sampling.top_k:
            body["top_k"] = sampling.top_k
        if sampling.min_p:
            body["min_p"] = sampling.min_p
        if sampling.repetition_penalty != 1.0:
            body["repetition_penalty"] = sampling.repetition_penalty
        return body


def _choice(answer: dict[str, Any]) -> dict[str, Any]:
    """Check and unpack the one choice of a completion."""
    try:
        choice = answer["choices"][0]
        ids = choice["token_ids"]
        logprobs = choice["logprobs"]["token_logprobs"]
        versions = choice.get("weight_versions") or [0] * len(ids)
        lengths = len(ids), len(logprobs), len(versions)
        finish_reason = choice["finish_reason"]
    except (KeyError, IndexError, TypeError) as error:
        raise ModelError(
            "the server's completion lacks token ids or logprobs; it must understand "
            f"`return_token_ids` and `logprobs` (missing: {error})"
        ) from error
    if not ids or len({*lengths}) != 1:
        raise ModelError(
            "the server sent {} token ids, {} logprobs and {} weight versions".format(*lengths)
        )
    if not all(isinstance(logprob, float | int) for logprob in logprobs):
        raise ModelError("the server sent no logprob for some of the sampled tokens")
    if finish_reason not in ("stop", "length"):
        raise ModelError(f"the server ended the completion with {finish_reason!r}")
    return {
        "token_ids": ids,
        "logprobs": logprobs,
        "versions": versions,
        "finish_reason": finish_reason,
    }
