"""The record of what one episode searched for, found and opened, for rubrics to read."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TypeVar

from vf.runtime.calling import instant
from vf.tools.episode import Episode


class _Step(Protocol):
    info: dict[str, Any]


S = TypeVar("S", bound=_Step)

INFO_KEY = "search"  # in Step.info and Trace.info


@dataclass(slots=True)
class SearchLog:
    """What one episode searched for, found and opened, in the order of its calls.

    Calls that the model was told are wrong (an empty query, an unknown id) are not here but
    among the tool events.

    Attributes:
        queries: The queries, as the model wrote them.
        found: For each query, the ids of the documents that the model was shown, best first.
        opened: The ids of the documents that it opened, once for each section opened.
        index: The index's fingerprint; the address of a server that has told none (yet).
    """

    queries: list[str] = field(default_factory=list)
    found: list[list[str]] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)
    index: str = ""

    def to_info(self) -> dict[str, Any]:
        """Return a copy as a plain dict, fit for ``Step.info``."""
        return asdict(self)

    @instant
    def close(self) -> None:
        """Nothing to let go of: an episode may hold the log."""


def search_log(episode: Episode) -> SearchLog:
    """Return the log of an episode, which is empty if nothing was searched yet.

    It lasts until the episode is closed; what is to be scored goes into ``Step.info`` before, with
    :func:`recorded`.
    """
    return episode.hold(SearchLog, SearchLog)


def recorded(step: S, episode: Episode) -> S:
    """Put the episode's log into a step's ``info["search"]``, and so into the trace; return it.

    Example::

        async def step(self, reply: vf.Message) -> vf.Step:
            return recorded(await self.run_tools(reply), self)
    """
    step.info[INFO_KEY] = search_log(episode).to_info()
    return step
