"""One problem to solve."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from vf.traces.images import portable

Split = Literal["train", "eval"]


@dataclass(slots=True)
class Task:
    """One problem.

    Attributes:
        id: Unique within its environment and split; everything random about a rollout is
            derived from it, so it must be stable between runs.
        prompt: Text, or a list of chat messages in OpenAI's format, whose content may hold texts
            and pictures (:class:`~vf.traces.images.Image`, Pillow's): these become data URLs. If
            the last one is the assistant's, a model that is given tokens continues it, and its
            reply is what it adds.
        answer: What the rubric compares with. Never shown to the model.
        info: Anything else the environment needs; must be JSON-serialisable.

    Raises:
        ConfigError: If a picture in the prompt cannot be read.
    """

    id: str
    prompt: str | list[dict[str, Any]]
    answer: Any = None
    info: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.prompt = portable(self.prompt)
