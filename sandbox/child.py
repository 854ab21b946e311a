"""The end of a supervisor's process on this machine."""

from __future__ import annotations

import asyncio
import contextlib

START_TIMEOUT = 60.0  # seconds until the supervisor must have answered
END_TIMEOUT = 20.0  # seconds that it has to kill everything and end
READ_AHEAD = 2**20  # bytes


async def end(process: asyncio.subprocess.Process) -> None:
    """Ask it to end, and wait for that; kill it if it does not end in time.

    When killed, what it started dies too: see keeper.py.
    """
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(END_TIMEOUT):
            await ended(process)
    except TimeoutError:
        await kill(process)


async def kill(process: asyncio.subprocess.Process) -> None:
    """Kill it, and wait until it is dead."""
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await ended(process)


async def ended(process: asyncio.subprocess.Process) -> None:
    """Wait until it has ended by itself."""
    assert process.stdout is not None
    # Unread output would keep asyncio from seeing the end.
    while await process.stdout.read(READ_AHEAD):
        pass
    await process.wait()
