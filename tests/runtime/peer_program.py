"""The process at the other end of a connection, for ``peer_ends.py``: it can be made to misbehave.

Its argument is the seconds of silence after which an end is lost.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

from vf.runtime.meeting import INVITATION, connect
from vf.runtime.peers import Handler


async def main(silence: float) -> None:
    """Answer calls until the connection ends; the exit code is 3 if one has not been cleaned up."""

    async def about() -> tuple[int, bool]:
        return os.getpid(), INVITATION in os.environ

    async def echo(value: Any) -> Any:
        return value

    async def block(seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - the event loop is to pause

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
    handlers: dict[str, Handler] = {"about": about, "echo": echo, "block": block}
    peer = await connect({**handlers, "hold": hold, "holding": holding}, silence=silence)
    await peer.serve()
    if under_way:
        sys.exit(3)


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1])))
