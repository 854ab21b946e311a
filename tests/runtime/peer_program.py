"""The process at the other end of a connection, for ``test_peers.py``: it can be made to misbehave.

Its argument is the seconds of silence after which an end is lost.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

from vf.runtime.meeting import INVITATION, connect

ENDED: list[str] = []


async def main(silence: float) -> None:
    """Answer calls until the connection ends; the exit code is 3 if one has not been cleaned up."""

    async def about() -> tuple[int, bool]:
        return os.getpid(), INVITATION in os.environ

    async def echo(value: Any) -> Any:
        return value

    async def block(seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - the event loop is to stand still

    async def hold(name: str, seconds: float) -> None:
        """Wait for ever; take a while to clean up."""
        under_way.append(name)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(seconds)
            under_way.remove(name)

    async def holding() -> list[str]:
        return under_way

    async def crash() -> None:
        os._exit(9)

    under_way: list[str] = []
    handlers = [about, echo, block, hold, holding, crash]
    peer = await connect({handler.__name__: handler for handler in handlers}, silence=silence)
    await peer.serve()
    if under_way:
        sys.exit(3)


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1])))
