"""What the endpoint's dialects have in common: a request as read, its answer, and a refusal."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from vf.inference.model import Reply
from vf.traces.messages import Message

TOO_LONG = "context_length_exceeded"  # OpenAI's code
_MOST_QUOTED = 2000  # characters


@dataclass(slots=True)
class ModelRequest:
    """One request of an agent, whatever dialect it came in.

    Attributes:
        messages: The whole conversation, in OpenAI's chat format.
        tools: The tools on offer, in OpenAI's chat format.
        model: The name that the agent asks for.
        count: How many answers it wants.
        stream: Whether it wants them as server-sent events.
        sampling: How it asks to sample, by the names of :class:`~vf.inference.model.Sampling`;
            what it does not ask for is left out.
        options: What else shapes the answer, by OpenAI's names: ``tool_choice``,
            ``parallel_tool_calls``, ``response_format``.
        raw: The request's body.
    """

    messages: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list)
    model: str = ""
    count: int = 1
    stream: bool = False
    sampling: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    raw: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Answered:
    """What is sent back for one request.

    Attributes:
        replies: ``ModelRequest.count`` answers.
        model: The model's name, as the agent knows it.
        id: Unique, without a dialect's prefix.
        created: Seconds since 1970.
    """

    replies: Sequence[Reply]
    model: str
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))


def shortened(text: str) -> str:
    """Return a text that quotes a request, whose fields may be of any length."""
    return text if len(text) <= _MOST_QUOTED else f"{text[:_MOST_QUOTED]}..."


class Refusal(Exception):
    """A request that is answered with an error; the rollout is none the worse for it.

    Attributes:
        status: The HTTP status.
        code: OpenAI's code, such as ``context_length_exceeded``; None where it has none.
        param: The field that is wrong.
    """

    def __init__(
        self, message: str, status: int = 400, *, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(shortened(message))
        self.status = status
        self.code = code
        self.param = param


class Dialect(Protocol):
    """One API that agents speak. It keeps no state."""

    def read(
        self, body: Mapping[str, Any], stored: Mapping[str, Sequence[Message]]
    ) -> ModelRequest:
        """Read a request.

        Args:
            body: The parsed JSON.
            stored: The conversations of earlier answers of this rollout, by ``Answered.id``.

        Raises:
            Refusal: If the request is wrong; the message names the field.
        """
        ...

    def answer(self, request: ModelRequest, answered: Answered) -> dict[str, Any]:
        """Return the body of the response."""
        ...

    def events(self, request: ModelRequest, answered: Answered) -> Iterator[bytes]:
        """Yield the same answer as server-sent events."""
        ...

    def error(self, refusal: Refusal) -> dict[str, Any]:
        """Return the body of an error response."""
        ...

    def failure(self, request: ModelRequest, refusal: Refusal) -> Iterator[bytes]:
        """Yield an error as server-sent events, for a stream that has begun."""
        ...
