"""A model over ``/v1/completions``: token ids in, token ids and logprobs out."""

from __future__ import annotations

from typing import Any

from vf.inference.model import ContextFull, Conversation, Reply, Sampling
from vf.inference.renderer import BridgeError, Renderer
from vf.inference.wire import JsonClient
from vf.traces.errors import ModelError
from vf.traces.trace import Branch, Fork


class PromptTooLong(ModelError):
    """The first prompt of a rollout is longer than ``max_prompt_len``."""


class TokenModel:
    """Answers conversations through a server that takes and returns token ids.

    Every branch of the conversation grows by exactly what was sent and sampled: the engine's
    ids and the engine's logprobs, never anything encoded a second time.

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
        branch = self._extend(conversation)
        prompt_ids = branch.token_ids
        room = self._max_seq_len - len(prompt_ids)
        if room < 1:
            raise ContextFull
        answer = await self._client.post(
            "/completions", self._request(prompt_ids, sampling, min(room, sampling.max_tokens))
        )
        choice = _choice(answer)
        ids, logprobs, versions = choice["token_ids"], choice["logprobs"], choice["versions"]
        message = self._renderer.parse(ids, prompt_ids=prompt_ids, turn=conversation.turn)
        prompt_tokens = len(prompt_ids)
        branch.add_sampled(ids, logprobs, versions, conversation.turn)
        # The runner appends the answer: counting it here keeps it from being rendered again.
        conversation.encoded = len(conversation.messages) + 1
        return Reply(message, choice["finish_reason"], prompt_tokens, len(ids))

    def _extend(self, conversation: Conversation) -> Branch:
        messages, turn = conversation.messages, conversation.turn
        if not conversation.branches:
            ids = self._renderer.prompt(messages, conversation.tools)
            if self._max_prompt_len is not None and len(ids) > self._max_prompt_len:
                raise PromptTooLong(
                    f"the first prompt has {len(ids)} tokens, over max_prompt_len = "
                    f"{self._max_prompt_len}"
                )
            return self._begin(conversation, ids)
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
        closer = (
            [] if branch.token_ids[-1] == self._renderer.closer_id else [self._renderer.closer_id]
        )
        branch.add_context(closer + bridge, turn)
        return branch

    def _rerender(self, conversation: Conversation, branch: Branch, reason: str) -> Branch:
        """Render everything again; grow the branch if that happens to extend it, else fork."""
        ids = self._renderer.prompt(conversation.messages, conversation.tools)
        if ids[: len(branch)] == branch.token_ids:
            branch.add_context(ids[len(branch) :], conversation.turn)
            return branch
        conversation.forks.append(Fork(conversation.turn, reason))
        return self._begin(conversation, ids)

    def _begin(self, conversation: Conversation, prompt_ids: list[int]) -> Branch:
        branch = Branch()
        branch.add_context(prompt_ids, conversation.turn)
        conversation.branches.append(branch)
        return branch

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
        finish_reason = choice["finish_reason"]
    except (KeyError, IndexError, TypeError) as error:
        raise ModelError(
            "the server's completion lacks token ids or logprobs; it must understand "
            f"`return_token_ids` and `logprobs` (missing: {error})"
        ) from error
    if not ids or len(ids) != len(logprobs):
        raise ModelError(f"the server sent {len(ids)} token ids and {len(logprobs)} logprobs")
    if finish_reason not in ("stop", "length"):
        raise ModelError(f"the server ended the completion with {finish_reason!r}")
    versions = choice.get("weight_versions") or [0] * len(ids)
    return {
        "token_ids": ids,
        "logprobs": logprobs,
        "versions": versions,
        "finish_reason": finish_reason,
    }
