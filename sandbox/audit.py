"""What some sandboxes can do, too: stop all programs, copy whole trees, and list side services."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import BinaryIO, Protocol, TypeVar, runtime_checkable

from vf.sandbox.contract import Sandbox

T = TypeVar("T")


@runtime_checkable
class Auditable(Protocol):
    """What a sandbox can do, too, where its backend reads and writes files without its help.

    Nothing that runs inside has a part in it, so nothing inside can get in the way. Owners, modes
    and names of every kind are kept.
    """

    async def end_programs(self) -> None:
        """Kill every program with everything that it started, the persistent ones too.

        Raises:
            OSError: The sandbox has ended.
            SandboxError: It is lost.
        """
        ...

    async def read_tree(self, path: str, read: Callable[[Iterator[bytes]], T]) -> T:
        """Read what is at a path as a tar archive, in another thread.

        Mounted file systems, such as ``/tmp``, have no part in it. Names begin with the last one of
        the path; those of ``/``, with what is in it.

        Args:
            path: An absolute path; backends may need it to be UTF-8, unlike what is below it.
            read: Gets the archive's pieces, and returns what this returns. It must not await.

        Raises:
            FileNotFoundError: There is nothing.
            OSError: The sandbox has ended, or the backend cannot read it.
            SandboxError: It is lost.
        """
        ...

    async def write_tree(self, archive: BinaryIO) -> None:
        """Unpack a tar archive at ``/``.

        What an entry finds in its place is removed, whatever that is, unless both are folders.

        Raises:
            OSError: The sandbox has ended, or the backend cannot write it.
            SandboxError: It is lost.
        """
        ...

    async def remove(self, paths: Collection[str]) -> None:
        """Remove files and folders with all that is in them, as far as user 0 and its own user can.

        Of a mounted file system, what is in it.

        Raises:
            OSError: The sandbox has ended.
            SandboxError: It is lost.
        """
        ...


@runtime_checkable
class Accompanied(Protocol):
    """A sandbox that may have side services.

    Attributes:
        beside: Their containers, by the names in the Compose file.
    """

    beside: Mapping[str, Sandbox]
