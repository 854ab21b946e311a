"""A vf-rl rollout inside verifiers: the intercepted model, and the trace that verifiers gets."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from vf.inference.model import Conversation, LimitReached, Reply, Sampling
from vf.inference.models.chat_answers import as_sent, read_reply
from vf.inference.models.tool_images import images_behind
from vf.inference.wire import JsonClient
from vf.runtime.errors import ModelError
from vf.traces.trace import StopReason, Trace

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

    A request is sent once: retries are up to verifiers, which would take a second
    request for another turn.

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
            ModelError: If verifiers has no answer.
            LimitReached: If verifiers has ended the rollout by a limit of its own.
        """
        messages = conversation.messages
        body: dict[str, Any] = {
            "model": self._model,
            "messages": images_behind(messages, [as_sent(message) for message in messages]),
        }
        if conversation.tools:
            body["tools"] = conversation.tools
        if sampling.max_tokens < NO_LIMIT:
            body["max_tokens"] = sampling.max_tokens
        try:
            answer = await self._client.post("/chat/completions", body)
            return read_reply(answer, self._model, conversation)
        except ModelError:
            condition = self._stopped()
            if condition is None:
                raise
            raise LimitReached(_LIMITS.get(condition, StopReason.TRUNCATED)) from None

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()


KEY = "vf"  # our trace's place in verifiers' trace.info
# verifiers' stop conditions for our own limits.
_STOPS = {
    StopReason.MAX_TURNS: "max_turns",
    StopReason.MAX_TOKENS: "max_output_tokens",
    StopReason.MAX_SEQ_LEN: "context_length",
    StopReason.TRUNCATED: "truncated",
}
# verifiers' errors by failed boundary; HarnessError for any other.
_ERRORS = {
    "sandbox": "SandboxError",
    "host": "SandboxError",
    "tool": "ToolsetError",
    "rubric": "TaskError",
    "environment": "TaskError",
}


def record(ours: Trace, theirs: Any) -> None:
    """Put our trace into verifiers' trace, and its end, where a limit made it.

    Args:
        ours: The rollout.
        theirs: A ``verifiers.v1.Trace``; it has the turns and their tokens already.

    Raises:
        verifiers.v1.RolloutError: If the rollout failed, or the rubric cannot score it: it has
            no reward, which is not a reward of 0.
    """
    import verifiers.v1 as v1

    theirs.info[KEY] = json.loads(ours.to_json())
    if ours.error is not None:
        kind = getattr(v1, _ERRORS.get(ours.error.boundary, "HarnessError"))
        raise kind(f"{ours.error.boundary}: {ours.error.message}")
    if ours.reward is None:
        raise v1.TaskError("the rubric said that this rollout cannot be scored")
    if ours.stop_reason in _STOPS:
        theirs.stop(_STOPS[ours.stop_reason])


def reward(info: Mapping[str, Any]) -> float:
    """Return the reward of a rollout from verifiers' ``trace.info``.

    Raises:
        ValueError: If another harness ran it.
    """
    return float(_score(info)["reward"])


def metrics(info: Mapping[str, Any]) -> dict[str, float]:
    """Return the reward's components, by their names in ``vf-rl eval``.

    Raises:
        ValueError: If another harness ran it.
    """
    score = _score(info)
    groups = {"penalty": "penalties", "gate": "gates", "part": "parts", "metric": "metrics"}
    components = {"outcome": score["outcome"]} | {
        f"{word}/{name}": value
        for word, group in groups.items()
        for name, value in score[group].items()
    }
    return {name: float(value) for name, value in components.items() if value is not None}


def _score(info: Mapping[str, Any]) -> Mapping[str, Any]:
    if KEY not in info:
        raise ValueError(
            "this task is scored by its environment's rubric, and another harness ran it: leave "
            "the harness out (env.agent.harness), which is then the environment's own"
        )
    score: Mapping[str, Any] = info[KEY]["score"]
    return score
