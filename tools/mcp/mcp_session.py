"""Sessions with an MCP server: one connection, one per episode, one for all episodes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from vf.runtime.errors import ToolError, ToolFailure
from vf.runtime.extras import load
from vf.tools.mcp.connection import GRACE, Server, ServerProcess
from vf.tools.tool_box import off_the_clock

CLOSE_TIMEOUT = GRACE + 3.0  # seconds that a session gets to end before it is cut off
MAX_PAGES = 1000  # of a server's list of tools
_INVALID_PARAMS = -32602  # JSON-RPC's
_CONNECTION_CLOSED = -32000  # the client's own


class Session:
    """A connection to a server, and the server's process where it was started by a command.

    The client's contexts must be left by the task that entered them, so one task does both and
    owns the session. A request waits for the answer, the deadline or the end of that task,
    whichever comes first.

    Args:
        server: Address or command of the server.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._process = ServerProcess()
        self._client: Any = None
        self._ready = asyncio.Event()
        self._leave = asyncio.Event()
        self._owner = asyncio.create_task(self._own())
        # The next request reports its error; there may be none, so it is retrieved here.
        self._owner.add_done_callback(lambda done: done.cancelled() or done.exception())

    @classmethod
    async def open(cls, server: Server, timeout: float) -> Session:
        """Start the server, or connect to it, and shake hands.

        Args:
            server: Address or command of the server.
            timeout: Seconds that it may take.

        Raises:
            ToolFailure: If it cannot be opened; gives the reason and the server's standard error.
        """
        session = cls(server)
        ready = asyncio.create_task(session._ready.wait())
        try:
            await session._first_of(ready, timeout)
        except BaseException:
            await session.close(at_once=True)
            raise
        finally:
            ready.cancel()
        if not session._ready.is_set():
            raise await session._lost(f"did not start within {timeout:g} s")
        return session

    @property
    def lost(self) -> bool:
        """Whether it has ended and takes no more requests."""
        return self._owner.done() or self._leave.is_set()

    async def tools(self, timeout: float) -> list[dict[str, Any]]:
        """Return all tools of the server, as they are in the protocol.

        Args:
            timeout: Seconds for each page of them.

        Raises:
            ToolFailure: If the server did not answer, or its list has too many pages.
        """
        types: Any = load("mcp.types", "mcp")
        tools: list[dict[str, Any]] = []
        cursor = None
        for _ in range(MAX_PAGES):
            params = types.PaginatedRequestParams(cursor=cursor)
            page = await self._ask(
                self._client.list_tools(params=params), timeout, "list its tools"
            )
            tools += page["tools"]
            cursor = page.get("nextCursor")
            if cursor is None:
                return tools
        raise await self._lost(f"has more than {MAX_PAGES} pages of tools")

    async def call(self, name: str, arguments: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Call a tool and return its result, as in the protocol.

        Args:
            name: The tool's name on the server.
            arguments: Its arguments.
            timeout: Seconds that it may take.

        Raises:
            ToolError: If the server does not accept the arguments.
            ToolFailure: If the server died, did not answer in time, or answered nonsense.
        """
        types: Any = load("mcp.types", "mcp")
        params = types.CallToolRequestParams(name=name, arguments=arguments)
        request = types.CallToolRequest(params=params)
        if isinstance(types.ClientRequest, type):  # mcp 1 wants every request in a wrapper
            request = types.ClientRequest(request)
        # Not `call_tool`: that checks the result itself, against one page of the list of tools.
        pending = self._client.send_request(request, types.CallToolResult)
        return await self._ask(pending, timeout, f"answer a call of {name!r}")

    async def close(self, *, at_once: bool = False) -> None:
        """End the session, and the server if it was started for it. Safe to call twice.

        Args:
            at_once: Give the server no time to end by itself.
        """
        self._leave.set()
        if at_once:
            self._process.kill()
            self._owner.cancel()
        await asyncio.wait({self._owner}, timeout=CLOSE_TIMEOUT)
        if not self._owner.done():
            self._process.kill()
            self._owner.cancel()
            await asyncio.wait({self._owner}, timeout=CLOSE_TIMEOUT)

    async def _own(self) -> None:
        mcp: Any = load("mcp", "mcp")
        async with (
            self._server.connect(self._process) as (read, write),
            mcp.ClientSession(read, write) as self._client,
        ):
            await self._client.initialize()
            self._ready.set()
            await self._leave.wait()

    async def _ask(
        self, request: Coroutine[Any, Any, Any], timeout: float, what: str
    ) -> dict[str, Any]:
        if self.lost:
            request.close()
            raise await self._lost("was lost")
        pending = asyncio.create_task(request)
        try:
            await self._first_of(pending, timeout)
            if not pending.done():
                raise await self._lost(f"did not {what} within {timeout:g} s")
            answer: dict[str, Any] = pending.result().model_dump(
                mode="json", by_alias=True, exclude_none=True
            )
        except (ToolFailure, asyncio.CancelledError):
            raise
        except Exception as error:
            code = _code(error)
            if code == _INVALID_PARAMS:
                raise ToolError(str(error)) from error
            failed = f"failed to {what}: {_reason(error)}"
            if code in (None, _CONNECTION_CLOSED):
                raise await self._lost(failed) from error
            raise ToolFailure(f"{self._server.name} {failed}") from error
        finally:
            pending.cancel()
        return answer

    async def _first_of(self, task: asyncio.Task[Any], timeout: float) -> None:
        """Wait for a task, but no longer than its time, or than the session lasts.

        Raises:
            ToolFailure: If the session has ended.
        """
        first = asyncio.FIRST_COMPLETED
        await asyncio.wait({task, self._owner}, timeout=timeout, return_when=first)
        if self._owner.done() and not task.done():
            error = None if self._owner.cancelled() else self._owner.exception()
            raise await self._lost(
                "has ended" + (f": {_reason(error)}" if error else "")
            ) from error

    async def _lost(self, how: str) -> ToolFailure:
        """End the session, and return an error with the server's last output."""
        await self.close(at_once=True)
        words = self._process.last_words
        return ToolFailure(
            f"{self._server.name} {how}"
            + (f". On standard error it said:\n{words}" if words else "")
        )


class EpisodeSession:
    """The session of one episode, opened when it is first needed.

    A server's state belongs to the episode, so a lost session is not opened again. The calls of
    one turn arrive together and share that state, so they run one after the other, in the order
    in which the model wrote them.

    Args:
        server: Address or command of the server.
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
            ToolError: If the server does not accept the arguments.
            ToolFailure: If the session is lost, or cannot be opened.
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
            if self._closed:  # the episode ended meanwhile, without this session
                await session.close(at_once=True)
            self._session = session
        return self._session


class SharedSession:
    """The one session of an event loop, opened when it is first needed, and again if it is lost.

    The loop's end closes it: asyncio then cancels what still runs, and waits for it.

    Args:
        server: Address or command of the server.
        start_timeout: Seconds for it to start.
    """

    def __init__(self, server: Server, start_timeout: float) -> None:
        self._server = server
        self._start_timeout = start_timeout
        self._opening = asyncio.Lock()
        self._session: Session | None = None

    async def call(self, name: str, arguments: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Call a tool, concurrently with other calls; see :meth:`Session.call`.

        Raises:
            ToolError: If the server does not accept the arguments.
            ToolFailure: If the server is lost, or does not start.
        """
        with off_the_clock():
            async with self._opening:
                if self._session is None or self._session.lost:
                    self._session = await Session.open(self._server, self._start_timeout)
                session = self._session
        return await session.call(name, arguments, timeout)


def _code(error: Exception) -> int | None:
    """Return the number of an error that the server answered with; None for any other."""
    mcp: Any = load("mcp", "mcp")
    answered = getattr(mcp, "MCPError", None) or mcp.McpError  # 2 has the first, 1 the second
    return error.error.code if isinstance(error, answered) else None


def _reason(error: BaseException) -> str:
    """Return what went wrong at the bottom of a group of errors, in one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
