"""The process at the other end of a connection, for ``peer_ends.py``."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from vf.runtime.meeting import INVITATION, connect
from vf.runtime.peers import Handler


async def main() -> None:
    """Answer calls until the connection ends; the exit code is 3 if one has not been cleaned up."""

    async def about() -> tuple[int, bool]:
        return os.getpid(), INVITATION in os.environ

    async def echo(value: Any) -> Any:
        return value

    async def hold(name: str, seconds: float) -> None:
        """Wait for ever; take a while to clean up."""
        under_way.append(name)
        try:
            await asyncio.Event().wait()
        finally:
            try:
                await asyncio.sleep(seconds)
            finally:
                under_way.remove(name)

    async def holding() -> list[str]:
        return under_way

    under_way: list[str] = []
    handlers: dict[str, Handler] = {"about": about, "echo": echo}
    peer = await connect({**handlers, "hold": hold, "holding": holding})
    await peer.serve()
    if under_way:
        sys.exit(3)


if __name__ == "__main__":
    asyncio.run(main())
