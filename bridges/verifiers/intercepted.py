"""The model of a rollout that verifiers has begun: its interception server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vf.inference.model import Conversation, LimitReached, Reply, Sampling
from vf.inference.wire import JsonClient
from vf.runtime.errors import ConfigError, ModelError
from vf.traces.messages import Message
from vf.traces.trace import StopReason

NO_LIMIT = 2**31 - 1  # tokens of a turn; then verifiers' own sampling settings have the say
# Limits of verifiers', by the names of its stop conditions.
_LIMITS = {
    "max_turns": StopReason.MAX_TURNS,
    "max_output_tokens": StopReason.MAX_TOKENS,
    "max_input_tokens": StopReason.MAX_SEQ_LEN,
    "max_total_tokens": StopReason.MAX_SEQ_LEN,
    "context_length": StopReason.MAX_SEQ_LEN,
}


class InterceptedModel:
    """Answers through verifiers, which knows the model and how to sample, and records the turn.

    A request is sent once: whether to try again is verifiers' to say, which would take a second
    one for another turn.

    Args:
        endpoint: The interception server, up to and including ``/v1``.
        secret: The rollout's own bearer token.
        model: The model's name.
        stopped: Returns the condition by which verifiers has ended the rollout, or None.
        timeout: Seconds for one answer.
    """

    def __init__(
        self,
        endpoint: str,
        secret: str,
        model: str,
        stopped: Callable[[], str | None],
        timeout: float,
    ) -> None:
        self._client = JsonClient(endpoint, api_key=secret, timeout=timeout, max_retries=0)
        self._model = model
        self._stopped = stopped

    async def respond(self, conversation: Conversation, sampling: Sampling) -> Reply:
        """Send the conversation and return the first choice.

        Raises:
            ModelError: verifiers has no answer.
            LimitReached: verifiers has ended the rollout by a limit of its own.
        """
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [message.to_openai() for message in conversation.messages],
        }
        if conversation.tools:
            body["tools"] = conversation.tools
        if sampling.max_tokens < NO_LIMIT:
            body["max_tokens"] = sampling.max_tokens
        try:
            return _reply(await self._client.post("/chat/completions", body))
        except ModelError:
            condition = self._stopped()
            if condition is None:
                raise
            raise LimitReached(_LIMITS.get(condition, StopReason.TRUNCATED)) from None

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()


def _reply(answer: dict[str, Any]) -> Reply:
    try:
        choice = answer["choices"][0]
        message = Message.from_openai({**choice["message"], "role": "assistant"})
        usage = answer.get("usage") or {}
        return Reply(
            message,
            "length" if choice.get("finish_reason") == "length" else "stop",
            usage.get("prompt_tokens") or 0,
            usage.get("completion_tokens") or 0,
        )
    except (KeyError, IndexError, TypeError, ConfigError) as error:
        raise ModelError(f"the answer is not a chat completion: {error}") from error
