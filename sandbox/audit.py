"""Optional abilities of sandboxes: stop all programs, copy whole trees, list side services."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import BinaryIO, Protocol, TypeVar, runtime_checkable

from vf.sandbox.contract import Sandbox

T = TypeVar("T")


@runtime_checkable
class Auditable(Protocol):
    """A sandbox whose backend reads and writes its files from outside.

    No program inside takes part, so that none can interfere. Owners, modes and names of every kind
    are kept.
    """

    async def end_programs(self) -> None:
        """Kill every program with everything that it started, the persistent ones too.

        Raises:
            OSError: If the sandbox has ended.
            SandboxError: If the sandbox is lost.
        """
        ...

    async def read_tree(self, path: str, read: Callable[[Iterator[bytes]], T]) -> T:
        """Read a path as a tar archive, in another thread.

        Mounted file systems, such as ``/tmp``, are not part of it. Names begin with the path's last
        one; those of ``/``, with its entries' names.

        Args:
            path: An absolute path; backends may need it to be UTF-8, unlike the names below it.
            read: A function of the archive's pieces, whose result is returned. It must not await.

        Raises:
            FileNotFoundError: If there is nothing at the path.
            OSError: If the sandbox has ended, or the backend cannot read it.
            SandboxError: If the sandbox is lost.
        """
        ...

    async def write_tree(self, archive: BinaryIO) -> None:
        """Unpack a tar archive at ``/``.

        Anything in an entry's place is removed, unless both are folders.

        Raises:
            OSError: If the sandbox has ended, or the backend cannot write it.
            SandboxError: If the sandbox is lost.
        """
        ...

    async def remove(self, paths: Collection[str]) -> None:
        """Remove files and folders with their content, as far as user 0 and its own user can.

        Of a mounted file system, its content.

        Raises:
            OSError: If the sandbox has ended.
            SandboxError: If the sandbox is lost.
        """
        ...


@runtime_checkable
class Accompanied(Protocol):
    """A sandbox that may have side services.

    Attributes:
        beside: The services' containers, by the names in the Compose file.
    """

    beside: Mapping[str, Sandbox]
