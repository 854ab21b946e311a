"""The interface of sources of sandboxes, for environments and tools."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from vf.runtime.errors import ConfigError
from vf.sandbox.contract import OpenSandbox, Sandbox
from vf.sandbox.spec import SandboxSpec

if TYPE_CHECKING:
    from vf.sandbox.stats import HostStats


FIELDS = [field.name for field in fields(SandboxSpec)]


@runtime_checkable
class SandboxSource(Protocol):
    """Creates sandboxes, one per episode."""

    def __hash__(self) -> int: ...

    def open(self, spec: SandboxSpec | None = None) -> AbstractAsyncContextManager[Sandbox]:
        """Return a context that opens a new sandbox and destroys it at the end.

        Args:
            spec: The spec of the sandbox; None for the source's own settings.

        Raises:
            ConfigError: If the source cannot make such a sandbox; see :meth:`check_spec`.
            SandboxError: If none can be created (raised on entering).
        """
        ...

    def check_spec(self, spec: SandboxSpec | None) -> None:
        """Check that the source can make sandboxes from a spec.

        Raises:
            ConfigError: If it cannot; names the field.
        """
        ...

    async def prefetch(self, specs: Iterable[SandboxSpec | None]) -> None:
        """Build or pull the images of specs, and return when all are there or have failed.

        What fails here fails again when a sandbox is opened, and is reported there.

        Args:
            specs: The specs in the order in which sandboxes will be opened. Equal ones may repeat:
                frequent ones are kept ready.

        Raises:
            ConfigError: If the source cannot make such a sandbox; see :meth:`check_spec`.
        """
        ...

    async def check(self) -> None:
        """Check that sandboxes can be created.

        Raises:
            ConfigError: If they cannot be created; says how to fix it.
        """
        ...

    async def start(self) -> None:
        """Start to prepare sandboxes in this event loop, without waiting for them."""
        ...

    def stats(self) -> Sequence[HostStats]:
        """Return the counts of sandboxes by engine, if known. For any thread."""
        ...


@runtime_checkable
class BoundedSource(Protocol):
    """A :class:`SandboxSource` with a limit on its containers."""

    @property
    def max_containers(self) -> int | None:
        """The number of containers that it may have at once on one engine; None for no limit."""
        ...


@runtime_checkable
class NamedSource(Protocol):
    """A :class:`SandboxSource` that names its backend."""

    @property
    def backend(self) -> str:
        """``"docker"``, ``"bubblewrap"`` or ``"local"``."""
        ...


def given_source(sandbox: SandboxSource | OpenSandbox) -> SandboxSource:
    """Return a source, or make one from a function; the same function gives equal sources.

    Raises:
        TypeError: If it is neither.
    """
    if isinstance(sandbox, SandboxSource):
        return sandbox
    if not callable(sandbox):
        raise TypeError(f"{sandbox!r} opens no sandboxes")
    return UnpooledSource(sandbox, "a function that opens sandboxes takes no spec")


@dataclass(frozen=True)
class UnpooledSource:
    """Sandboxes from a function that decides what it opens.

    Args:
        function: Opens one.
        refusal: Why it takes no spec, for the error.
    """

    function: OpenSandbox
    refusal: str

    def open(self, spec: SandboxSpec | None = None) -> AbstractAsyncContextManager[Sandbox]:
        """Call it."""
        self.check_spec(spec)
        return self.function()

    def check_spec(self, spec: SandboxSpec | None) -> None:
        """Refuse any spec."""
        refuse_spec(spec, self.refusal)

    async def prefetch(self, specs: Iterable[SandboxSpec | None]) -> None:
        """Check them: there is nothing to fetch."""
        for spec in specs:
            self.check_spec(spec)

    async def check(self) -> None:
        """Do nothing: nothing can be missing."""

    async def start(self) -> None:
        """Do nothing: there is nothing to prepare."""

    def stats(self) -> Sequence[HostStats]:
        """Return nothing: there are no pools."""
        return ()


def refuse_spec(
    spec: SandboxSpec | None,
    reason: str,
    names: Iterable[str] = FIELDS,
) -> None:
    """Refuse a spec that sets certain fields.

    Args:
        spec: The task's spec.
        reason: The reason for the refusal, at the end of the message.
        names: The fields that must not be set; by default all.

    Raises:
        ConfigError: If it sets one; names the first field that is set.
    """
    defaults = SandboxSpec()
    for name in names:
        value = getattr(spec or defaults, name)
        if value != getattr(defaults, name):
            raise ConfigError(
                f"the task's sandbox_spec has {name} = {value!r}, but {reason}; "
                'write sandbox = "docker"'
            )
