"""Which server a request goes to, and with which weights: asked before each request.

Requests and answers go straight to the servers, from whichever process a rollout is in. What is
served changes in one process, the trainer's, so each request asks there for a lease: a server, the
model's name on it and the version of its weights. Until the lease is given back the request is
known to be under way, so that weights are not exchanged, nor adapters dropped, below it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from vf.inference.serving import Served


@dataclass(frozen=True, slots=True)
class Member:
    """How one inference server is reached. It can be sent to other processes.

    Attributes:
        base_url: Up to and including ``/v1``; for the wire ``generate``, the server's root.
        wire: Which API is asked: OpenAI's completions, or vLLM's ``/inference/v1/generate``.
        api_key: Sent as a bearer token, if there is one.
        away: Seconds for which it is waited for while it refuses connections.
    """

    base_url: str
    wire: Literal["openai", "generate"] = "openai"
    api_key: str | None = None
    away: float = 900.0


class Lease(NamedTuple):
    """One request's place on a server; ``number`` is the lease's own."""

    number: int
    member: Member
    served: Served


class Leases(Protocol):
    """Gives every request its server."""

    async def take(self, conversation: str) -> Lease:
        """Wait until a server can be asked, and return which.

        Args:
            conversation: Key of what the request continues. It stays with its server, which has
                its prefix cached, as long as that one lives.

        Raises:
            ServerDown: No server is there, and none will come back.
        """
        ...

    async def give_back(self, lease: Lease) -> bool:
        """Note that a request has ended; return whether its server was lost meanwhile."""
        ...

    async def still(self, member: Member) -> bool:
        """Return whether a server samples nothing at present, to train or to change its weights."""
        ...

    async def available(self) -> None:
        """Wait until some server can be asked.

        Raises:
            ServerDown: None will come back.
        """
        ...
