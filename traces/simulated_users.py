"""What a trace records of the simulated user in it: who played, what was said, what it cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vf.runtime.errors import ConfigError
from vf.traces.messages import Message
from vf.traces.trace import Trace

KEY = "simulated_user"  # in Trace.info
STOPPED = "stop"  # why a conversation ended where the user said so


@dataclass(frozen=True, slots=True)
class UserRecord:
    """The simulated user of one rollout. Nothing of it is the policy's, and none of it is trained.

    Attributes:
        played_by: The model's name, or what else played.
        requests: How often it was asked, failed attempts included.
        prompt_tokens: As its server counts them, summed over the requests.
        completion_tokens: Tokens that it sampled.
        ended: Why the user ended the conversation: ``stop`` where they said so, or what kept them
            from answering what the policy had said; None where they did not.
        messages: The conversation as the user sees it: the policy's words are those of a ``user``,
            the user's own those of an ``assistant``.
    """

    played_by: str
    requests: int
    prompt_tokens: int
    completion_tokens: int
    ended: str | None
    messages: list[Message]


def user_of(trace: Trace) -> UserRecord | None:
    """Return what a trace records of its simulated user; None if it has none."""
    raw: Any = trace.info.get(KEY)
    if not isinstance(raw, dict):
        return None
    try:
        return UserRecord(
            played_by=str(raw["played_by"]),
            requests=int(raw["requests"]),
            prompt_tokens=int(raw["prompt_tokens"]),
            completion_tokens=int(raw["completion_tokens"]),
            ended=None if raw["ended"] is None else str(raw["ended"]),
            messages=[Message.from_openai(message) for message in raw["messages"]],
        )
    except (KeyError, TypeError, ValueError, ConfigError):  # something else, by the same name
        return None
