"""What tools may rely on: the episode they work in, and what they share between episodes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from vf.sandbox.spec import SandboxSpec
from vf.traces.tools import Tool


class Closing(Protocol):
    """Something that an episode holds, such as a sandbox."""

    def close(self) -> Awaitable[None] | None:
        """Release it."""
        ...


Held = TypeVar("Held", bound=Closing)


class Episode(Protocol):
    """The part of an :class:`~vf.environments.environment.Environment` that tools use.

    Attributes:
        turn: Zero-based turn of the reply whose calls are run.
        timeout: Seconds for the whole rollout.
        tool_timeout: Seconds for one tool call.
        timing: Seconds of this episode by phase.
        task_sandbox: What the task's sandbox is made from; None for the source's own settings.
    """

    turn: int
    timeout: float
    tool_timeout: float
    timing: dict[str, float]
    task_sandbox: SandboxSpec | None

    def hold(self, key: Hashable, make: Callable[[], Held]) -> Held:
        """Return what the episode holds under a key, made at the first call and closed with it."""
        ...


class Service(Protocol):
    """Something that all episodes share, such as a pool of sandboxes."""

    async def check(self) -> None:
        """Check that it is available: called before a run begins.

        Raises:
            ConfigError: If it is not; says how to fix it.
        """
        ...

    async def start(self) -> None:
        """Begin to get ready, without waiting: called in the loop that episodes run in."""
        ...


@runtime_checkable
class ToolSet(Protocol):
    """Tools that need something from the episode, for use in any environment."""

    @property
    def services(self) -> Sequence[Service]:
        """What the tools need."""
        ...

    def bind(self, episode: Any) -> Sequence[Callable[..., Any] | Tool]:
        """Return the tools of one :class:`Episode`: typed functions, bound methods, or tools."""
        ...


@runtime_checkable
class ListedLater(Protocol):
    """A :class:`ToolSet` that has to ask somebody which tools it has, such as an MCP server."""

    async def list_tools(self) -> None:
        """Ask, unless that is done: awaited before ``bind``, where an episode brings the set.

        Raises:
            ConfigError: If nobody answers, or a tool cannot be used.
        """
        ...


def bound(entries: Sequence[Callable[..., Any] | ToolSet | Tool], episode: Any) -> list[Tool]:
    """Return the tools of one :class:`Episode`.

    Args:
        entries: Functions, tools and tool sets, as an environment lists them.
        episode: The episode that tool sets are bound to.

    Raises:
        ConfigError: If a tool cannot be used.
    """
    functions: list[Callable[..., Any] | Tool] = []
    for entry in entries:
        functions += entry.bind(episode) if isinstance(entry, ToolSet) else [entry]
    return [fn if isinstance(fn, Tool) else Tool.from_function(fn) for fn in functions]
