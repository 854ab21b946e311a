"""Two ends of a connection, in this process or in two, for the tests of what they do."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from vf.runtime.meeting import connect, listen
from vf.runtime.peers import Handler, Peer

PROGRAM = [sys.executable, str(Path(__file__).with_name("peer_program.py"))]
START_SECONDS = 60.0


@asynccontextmanager
async def pair(
    here: Mapping[str, Handler], there: Mapping[str, Handler]
) -> AsyncIterator[tuple[Peer, Peer]]:
    """Yield two ends in this process, both served."""
    async with listen() as listener:
        invitation = listener.invite("the other end")
        os.environ.update(invitation.environ)
        accepted = asyncio.create_task(invitation.accepted(here, START_SECONDS))
        ends = await connect(there), await accepted
    serving = [asyncio.create_task(end.serve()) for end in ends]
    try:
        yield ends[1], ends[0]
    finally:
        for end in ends:
            await end.close()
        await asyncio.gather(*serving)


@asynccontextmanager
async def program() -> AsyncIterator[tuple[Peer, asyncio.subprocess.Process]]:
    """Yield the connection to ``peer_program.py`` and its process, which ends with the block."""
    async with listen() as listener:
        invitation = listener.invite("the program")
        environ = {**os.environ, **invitation.environ}
        process = await asyncio.create_subprocess_exec(*PROGRAM, env=environ)
        try:
            peer = await invitation.accepted({}, START_SECONDS)
            serving = asyncio.create_task(peer.serve())
            try:
                yield peer, process
            finally:
                await peer.close()
                await serving
            await asyncio.wait_for(process.wait(), START_SECONDS)
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
