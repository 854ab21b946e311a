"""One problem to solve."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Split = Literal["train", "eval"]


@dataclass(slots=True)
class Task:
    """One problem.

    Attributes:
        id: Unique within its environment and split; everything random about a rollout is
            derived from it, so it must be stable between runs.
        prompt: Text, or a list of chat messages in OpenAI's format. If the last one is the
            assistant's, a model that is given tokens continues it, and its reply is what it adds.
        answer: What the rubric compares with. Never shown to the model.
        info: Anything else the environment needs; must be JSON-serialisable.
    """

    id: str
    prompt: str | list[dict[str, Any]]
    answer: Any = None
    info: dict[str, Any] = field(default_factory=dict)
