"""The tools of a v1 taskset: its ``Toolset`` objects served inside this process.

verifiers starts a process for each and talks MCP to it over HTTP. Here the same server speaks MCP
through memory, so names, schemas, checks and the texts of errors are MCP's own. A tool set that is
served elsewhere is called there.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, TypeVar

import pydantic_core

from vf.bridges.verifiers.conversion import announced
from vf.runtime.calling import carry_out
from vf.runtime.errors import EnvironmentFailure, ToolError, ToolFailure
from vf.tools.mcp.connection import Server
from vf.tools.mcp.mcp_session import Session
from vf.traces.messages import ToolCall
from vf.traces.tools import Tool
from vf.traces.trace import ToolEvent

T = TypeVar("T")

_current: ContextVar[Calls] = ContextVar("current")
_SECONDS = 60.0  # for an answer of a server elsewhere


class Calls:
    """The tool calls of one rollout.

    Args:
        trace: verifiers' trace, whose ``state`` the tools share.
        servers: The tool sets, each with its server.
    """

    def __init__(self, trace: Any, servers: Sequence[Served]) -> None:
        self.trace = trace
        self.lost: Exception | None = None  # the error of a tool whose connection was lost
        self._tools = {name: (served, raw) for served in servers for name, raw in served.names}

    async def run(self, call: ToolCall, event: ToolEvent) -> str:
        """Run one call, and return the text for the model. ``event`` gets its outcome.

        Raises:
            ToolFailure: If the tool's connection was lost.
            EnvironmentFailure: If it returned something other than text.
        """
        text = self._fault(call, event)
        if text is not None:
            return text
        served, raw = self._tools[call.name]
        token = _current.set(self)
        try:
            blocks, wrong = await served.call(raw, json.loads(call.arguments or "{}"))
        finally:
            _current.reset(token)
        if self.lost is not None:
            raise ToolFailure(
                f"tool {call.name!r} raised {type(self.lost).__name__}: {self.lost}"
            ) from self.lost
        text = _text(call.name, blocks)
        if wrong:
            event.kind, event.detail = "rejected", text
        return text

    def _fault(self, call: ToolCall, event: ToolEvent) -> str | None:
        """Return the error for a call that cannot be made, in verifiers' words."""
        if call.malformed is not None:
            event.kind, event.detail = "malformed", call.malformed
            return f"error: the tool call could not be read: {call.malformed}"
        try:
            arguments = json.loads(call.arguments or "{}")
            pydantic_core.from_json(call.arguments or "{}")  # refuses what nobody could be sent
        except (ValueError, RecursionError) as error:
            event.kind, event.detail = "invalid_json", str(error)
            return (
                f"error: invalid JSON in tool arguments ({error}); resend the call with valid JSON"
            )
        if not isinstance(arguments, dict):
            event.kind, event.detail = "invalid_arguments", "not an object"
            return (
                "error: tool arguments must be a JSON object, got "
                f"{type(arguments).__name__}; resend as an object"
            )
        if call.name not in self._tools:
            event.kind, event.detail = "unknown_tool", call.name
            return f"error: unknown tool {call.name!r}"
        return None


class Served:
    """A tool set and its MCP server.

    Args:
        toolset: The verifiers ``Toolset``.

    Attributes:
        tools: Its tools with their schemas for the model.
        names: Of each, the name that the model knows, and the tool set's own.
    """

    def __init__(self, toolset: Any) -> None:
        self.toolset = toolset
        _share_state(toolset)
        self._server = _server_class()(toolset.server_name or type(toolset).__name__)
        toolset.register(self._server)
        self.names: list[tuple[str, str]] = []
        self.tools: list[Tool] = []
        for tool in _at_once(self._server.list_tools()):
            schema = getattr(tool, "inputSchema", None) or getattr(tool, "input_schema", None)
            self._announce(tool.name, tool.description, schema)
        self._setting_up: asyncio.Future[None] | None = None

    def _announce(self, name: str, description: str | None, schema: dict[str, Any] | None) -> None:
        prefix = f"{self.toolset.server_name}_" if self.toolset.server_name else ""
        self.names.append((f"{prefix}{name}", name))
        self.tools.append(announced(f"{prefix}{name}", description or "", schema or {}))

    async def open(self, stack: AsyncExitStack, data: Any) -> None:
        """Set the tool set up for one task; what it holds is closed with the stack."""
        await stack.enter_async_context(self.toolset._exit_stack)
        await self.ready()
        await self.toolset.setup_task(data)

    async def call(self, name: str, arguments: dict[str, Any]) -> tuple[Sequence[Any], bool]:
        """Call a tool; return the blocks of its answer, and whether it is an error."""
        async with _client(self._server) as client:
            result = await client.call_tool(name, arguments)
        wrong = getattr(result, "isError", False) or getattr(result, "is_error", False)
        return result.content, wrong

    async def ready(self) -> None:
        """Set the tool set up, if it has not been: once for all rollouts that share it."""
        if self._setting_up is None:
            self._setting_up = asyncio.ensure_future(self.toolset.setup())
        await asyncio.shield(self._setting_up)


class Remote(Served):
    """A tool set whose tools another server has, at the URL that its config names.

    Args:
        toolset: The verifiers ``Toolset``.

    Raises:
        ToolFailure: If the server does not list its tools.
    """

    def __init__(self, toolset: Any) -> None:
        self.toolset = toolset
        self._at = Server(None, toolset.config.url, "http", {}, {}, None)
        self.names, self.tools = [], []
        for tool in carry_out(self._with_session(lambda session: session.tools(_SECONDS))):
            self._announce(tool["name"], tool.get("description"), tool.get("inputSchema"))

    async def open(self, stack: AsyncExitStack, data: Any) -> None:
        """Do nothing: it knows nothing of the task."""

    async def ready(self) -> None:
        """Do nothing: it runs already."""

    async def call(self, name: str, arguments: dict[str, Any]) -> tuple[Sequence[Any], bool]:
        """Call a tool there.

        Raises:
            ToolFailure: If the server did not answer.
        """
        try:
            result = await self._with_session(
                lambda session: session.call(name, arguments, _SECONDS)
            )
        except ToolError as error:  # the arguments are wrong
            return [SimpleNamespace(type="text", text=str(error))], True
        blocks = [SimpleNamespace(**block) for block in result.get("content", ())]
        return blocks, bool(result.get("isError"))

    async def _with_session(self, request: Callable[[Session], Awaitable[T]]) -> T:
        session = await Session.open(self._at, _SECONDS)
        try:
            return await request(session)
        finally:
            await session.close()


def serve(toolset: Any) -> Served:
    """Return a tool set with what serves it."""
    return Remote(toolset) if getattr(toolset.config, "url", None) else Served(toolset)


def _share_state(toolset: Any) -> None:
    """Let a tool set's state be that of the rollout which calls it, without HTTP between.

    As over HTTP, a call works on a copy, and what it changed replaces the whole.
    """
    adapter = toolset._state_adapter

    async def pull() -> Any:
        return adapter.validate_json(_current.get().trace.state.model_dump_json())

    async def push(before: bytes) -> None:
        after = adapter.dump_json(toolset.state)
        if after != before:
            trace = _current.get().trace
            trace.state = type(trace.state).model_validate_json(after)

    toolset._pull_state, toolset._push_state = pull, push
    with_state = toolset._with_state
    toolset._with_state = lambda fn: with_state(_noting_lost(fn))


def _noting_lost(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a tool that notes a dead connection: MCP makes a text of it, like of any error."""
    import httpx

    @functools.wraps(fn)
    async def noting(*args: Any, **kwargs: Any) -> Any:
        try:
            result = fn(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result
        except (ConnectionError, httpx.TransportError) as error:
            _current.get().lost = error
            raise

    return noting


def _client(server: Any) -> AbstractAsyncContextManager[Any]:
    """Return a client of a server in this process, for one call."""
    try:
        from mcp import Client  # from version 2 on
    except ImportError:
        from mcp.shared.memory import create_connected_server_and_client_session

        old: AbstractAsyncContextManager[Any] = create_connected_server_and_client_session(server)
        return old
    client: AbstractAsyncContextManager[Any] = Client(server)
    return client


def _at_once(coroutine: Coroutine[Any, Any, list[Any]]) -> list[Any]:
    """Return what a coroutine returns that waits for nothing, with or without a running loop."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        tools: list[Any] = done.value
        return tools
    raise EnvironmentFailure("verifiers: a tool server that lists its tools only after waiting")


def _server_class() -> Any:
    try:
        from mcp.server.mcpserver import MCPServer  # from version 2 on
    except ImportError:
        from mcp.server.fastmcp import FastMCP

        return FastMCP
    return MCPServer


def _text(name: str, blocks: Sequence[Any]) -> str:
    for block in blocks:
        if block.type != "text":
            raise EnvironmentFailure(
                f"tool {name!r} returned {block.type!r}; only text can be shown"
            )
    # As verifiers' harness joins them; nothing at all is shown as an empty list.
    return "\n".join(block.text for block in blocks) if blocks else str(list(blocks))
