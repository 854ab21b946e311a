"""The sessions that calls go to: one of the episode's own, or one that all episodes share."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from vf.runtime.errors import ToolFailure
from vf.tools.mcp.connection import Server
from vf.tools.mcp.mcp_session import Session
from vf.tools.tool_box import off_the_clock


class EpisodeSession:
    """The session of one episode, opened when it is first needed.

    What a server remembers belongs to the episode, so a session that is lost is not opened again.
    The calls of one turn come at once, and what a server remembers is one state: so they run one
    after the other, in the order in which the model wrote them.

    Args:
        server: Where it is.
        start_timeout: Seconds for it to start.
        timing: The episode's ``timing``: its ``"mcp"`` becomes the seconds spent starting.
    """

    def __init__(self, server: Server, start_timeout: float, timing: dict[str, float]) -> None:
        self._server = server
        self._start_timeout = start_timeout
        self._timing = timing
        self._turn = asyncio.Lock()
        self._session: Session | None = None
        self._closed = False

    async def call(self, name: str, arguments: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Call a tool; see :meth:`Session.call`.

        Raises:
            ToolError: The server does not accept the arguments.
            ToolFailure: The session is lost, or cannot be had.
        """
        with off_the_clock():
            await self._turn.acquire()
        try:
            with off_the_clock():
                session = await self._opened()
            return await session.call(name, arguments, timeout)
        finally:
            self._turn.release()

    async def close(self) -> None:
        """Close the session, if it was opened."""
        self._closed = True
        if self._session is not None:
            await self._session.close()

    async def _opened(self) -> Session:
        if self._closed:
            raise ToolFailure("the episode has ended, and its MCP session with it")
        if self._session is None:
            began = time.monotonic()
            session = await Session.open(self._server, self._start_timeout)
            self._timing["mcp"] = self._timing.get("mcp", 0.0) + time.monotonic() - began
            if self._closed:  # the episode ended meanwhile, and did not see this one
                await session.close(at_once=True)
            self._session = session
        return self._session


class SharedSession:
    """The one session of an event loop, opened when it is first needed, and again if it is lost.

    The loop's end closes it: asyncio cancels what still runs then, and waits for it.

    Args:
        server: Where it is.
        start_timeout: Seconds for it to start.
    """

    def __init__(self, server: Server, start_timeout: float) -> None:
        self._server = server
        self._start_timeout = start_timeout
        self._opening = asyncio.Lock()
        self._session: Session | None = None

    async def call(self, name: str, arguments: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Call a tool, at once with any others; see :meth:`Session.call`.

        Raises:
            ToolError: The server does not accept the arguments.
            ToolFailure: The server is lost, or cannot be had.
        """
        with off_the_clock():
            async with self._opening:
                if self._session is None or self._session.lost:
                    self._session = await Session.open(self._server, self._start_timeout)
                session = self._session
        return await session.call(name, arguments, timeout)
