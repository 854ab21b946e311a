"""What some sandboxes can do, too: be brought to rest, compared, and asked who is beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from vf.sandbox.contract import Sandbox


@dataclass(frozen=True, slots=True)
class Change:
    """One path of a sandbox that is not as in its image.

    Attributes:
        kind: What was done to it.
        path: Where it is; absolute.
    """

    kind: Literal["added", "changed", "deleted"]
    path: str


@runtime_checkable
class Auditable(Protocol):
    """What a sandbox can do, too, where its backend lets what ran in it be looked into.

    Nothing that runs inside has a part in either, so nothing inside can get in the way.
    """

    async def end_programs(self) -> None:
        """Kill every program with everything that it started, the persistent ones too.

        Raises:
            OSError: The sandbox has ended.
            SandboxError: It is lost.
        """
        ...

    async def changes(self) -> list[Change]:
        """Return what is not as in the image that the sandbox started from.

        Mounted file systems, such as ``/tmp``, have no part in it. Running programs keep
        changing it.

        Raises:
            OSError: The sandbox has ended.
            SandboxError: It is lost, or the engine does not answer.
        """
        ...


@runtime_checkable
class Accompanied(Protocol):
    """A sandbox that may have side services.

    Attributes:
        beside: Their containers, by the names in the Compose file.
    """

    beside: Mapping[str, Sandbox]
