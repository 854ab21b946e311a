"""A request to the scheduler, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from vf.inference.embedded.contexts import Context
from vf.inference.embedded.lora_mixture import Lora
from vf.inference.embedded.sampler import Stream
from vf.inference.embedded.sight import Shown

Reason = Literal["stop", "length"]


@dataclass(slots=True, eq=False)
class Request:
    """A request from its prompt to its last token.

    Attributes:
        stream: What it samples by, and what it has sampled.
        stops: The tokens that end it.
        every_token: Whether each token is news, or only the last.
        lora: The adapter that it is computed with; None for the model alone.
        shown: The images in its prompt; None without any.
        cancelled: Set by whoever is no longer interested.
        todo: Tokens whose keys and values are not computed yet; see :mod:`.sight` for images.
        context: Where its keys and values are, once it runs.
    """

    stream: Stream
    stops: frozenset[int]
    every_token: bool
    lora: Lora | None = None
    shown: Shown | None = None
    cancelled: bool = False
    todo: list[int] = field(default_factory=list)
    context: Context = field(init=False)

    @property
    def prompt(self) -> list[int]:
        """The tokens of its prompt, which tell it from others."""
        return self.stream.prompt_ids if self.shown is None else self.shown.keys

    @property
    def owner(self) -> int:
        """The number of its adapter, or 0."""
        return 0 if self.lora is None else self.lora.number


@dataclass(frozen=True, slots=True)
class News:
    """What has come of a request.

    Attributes:
        request: Which.
        count: Its tokens so far.
        reason: Why it ended; None if it has not.
        failure: Why it failed, which has ended it; empty if it has not.
    """

    request: Request
    count: int
    reason: Reason | None
    failure: str = ""
