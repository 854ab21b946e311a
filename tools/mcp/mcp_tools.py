"""Tools of an MCP server, for any environment.

    class Desk(vf.Environment):
        tools = [vf.McpTools(command=["python", "notes_server.py"])]

The tools are listed once, before a run begins, and their schemas are checked. Each episode has a
session of its own, which is opened at its first call and closed however the episode ends. What a
tool reports as its error goes to the model; a server that dies, hangs or breaks the protocol ends
the rollout without a reward.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from vf.runtime.batching import PerLoop
from vf.runtime.calling import carry_out
from vf.runtime.errors import ConfigError, ToolError, ToolFailure
from vf.runtime.extras import check_version, load
from vf.tools.episode import Episode
from vf.tools.json_schema import faults
from vf.tools.mcp.connection import Server, Transport
from vf.tools.mcp.listing import ListedTool, select, text_of
from vf.tools.mcp.mcp_session import EpisodeSession, Session, SharedSession
from vf.tools.sandbox_tools import clip
from vf.traces.tools import Tool

Sessions = Literal["episode", "shared"]


class McpTools:
    """A tool set: the tools of one MCP server.

    Args:
        command: The program that is the server, and its arguments. It speaks MCP over its
            standard streams, gets only the few environment variables that every program needs,
            and is killed with its children when its session ends.
        url: Instead of a command: the address of a running server.
        transport: Protocol for an address: ``"http"`` (streamable HTTP) or ``"sse"``.
        env: Environment variables for the command. Never shown or recorded.
        headers: HTTP headers for the address. Never shown or recorded.
        cwd: The command's working directory.
        session: ``"episode"`` gives each episode its own session, in which calls run one after
            another: right for any server. ``"shared"`` uses one session for all episodes, with
            concurrent calls: for stateless servers.
        include: Names of the server's tools to take; None takes all.
        exclude: Names of the server's tools to leave out.
        prefix: Put before every tool's name, to distinguish the tools of two servers.
        timeout: Seconds for one call. The environment's ``tool_timeout`` also applies.
        start_timeout: Seconds for the server to start and shake hands, and for it to list its
            tools.
        max_output: Characters of a result that the model sees: head and tail.

    Raises:
        ConfigError: If the arguments do not fit together, or one is out of range.
    """

    def __init__(
        self,
        command: Sequence[str] | None = None,
        *,
        url: str | None = None,
        transport: Transport = "http",
        env: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        cwd: str | None = None,
        session: Sessions = "episode",
        include: Sequence[str] | None = None,
        exclude: Sequence[str] = (),
        prefix: str = "",
        timeout: float = 20.0,
        start_timeout: float = 60.0,
        max_output: int = 8000,
    ) -> None:
        _check_place(command, url, transport, env, headers, cwd)
        _one_of("session", session, get_args(Sessions))
        if include is not None and exclude:
            raise ConfigError("McpTools: give include or exclude, not both")
        self.server = Server(
            tuple(command) if command is not None else None,
            url,
            transport,
            dict(env or {}),
            dict(headers or {}),
            cwd,
        )
        self.session = session
        self.timeout = _positive("timeout", timeout)
        self.start_timeout = _positive("start_timeout", start_timeout)
        self.max_output = int(_positive("max_output", max_output))
        self.include, self.exclude, self.prefix = include, exclude, prefix
        self._tools: list[ListedTool] | None = None
        self._listing = PerLoop(asyncio.Lock)
        self._shared = PerLoop(lambda: SharedSession(self.server, self.start_timeout))
        self.services = [self]

    def bind(self, episode: Episode) -> Sequence[Tool]:
        """Return the tools of one episode.

        Without an earlier :meth:`check` or :meth:`list_tools`, blocks here, once, until the server
        has listed its tools.

        Raises:
            ConfigError: If :meth:`check` raises it.
        """
        if self._tools is None:
            carry_out(self.check())
        assert self._tools is not None
        session: EpisodeSession | None = None
        if self.session == "episode":
            session = episode.hold(
                self, lambda: EpisodeSession(self.server, self.start_timeout, episode.timing)
            )
        return [self._tool(listed, session) for listed in self._tools]

    async def list_tools(self) -> None:
        """List the server's tools, unless that is done; for a set that ``reset`` makes.

        Raises:
            ConfigError: If :meth:`check` raises it.
        """
        async with self._listing.get():
            if self._tools is None:
                await self.check()

    async def check(self) -> None:
        """List the server's tools and check that they can be used, before a run begins.

        Raises:
            ConfigError: If the server cannot be reached (with its standard error), a tool's
                name or schema cannot be used, or the package is missing.
        """
        load("mcp", "mcp")
        check_version("mcp", "mcp", "1.24", "3")
        try:
            session = await Session.open(self.server, self.start_timeout)
            try:
                listed = await session.tools(self.start_timeout)
            finally:
                await session.close()
        except (ToolFailure, ToolError) as error:
            raise ConfigError(f"McpTools: {error}") from error
        self._tools = select(
            listed,
            include=self.include,
            exclude=self.exclude,
            prefix=self.prefix,
            where=f"McpTools: {self.server.name}",
        )

    async def start(self) -> None:
        """Nothing to do: sessions are opened when they are first needed."""

    def _tool(self, listed: ListedTool, session: EpisodeSession | None) -> Tool:
        async def run(**arguments: Any) -> str:
            calls = session or self._shared.get()
            result = await calls.call(listed.remote, arguments, self.timeout)
            text, _ = clip(text_of(result), self.max_output)
            if result.get("isError"):
                raise ToolError(text)
            if listed.result is not None:
                _check_result(listed, result)
            return text

        return Tool.from_schema(
            listed.name, listed.description, listed.parameters, run, listed.fault
        )


def _check_result(listed: ListedTool, result: dict[str, Any]) -> None:
    """See that a structured result is what the server says that it gives.

    Raises:
        ToolError: If it is not; the model receives the error, since the result cannot be trusted.
    """
    if "structuredContent" not in result:
        fault = "it is not structured"
    else:
        fault = faults(listed.result, result["structuredContent"])
    if fault:
        raise ToolError(f"the result of {listed.name} is not what its own schema says: {fault}")


def _check_place(
    command: Sequence[str] | None,
    url: str | None,
    transport: str,
    env: Mapping[str, str] | None,
    headers: Mapping[str, str] | None,
    cwd: str | None,
) -> None:
    if (command is None) == (url is None):
        raise ConfigError("McpTools: give a command or a url, and not both")
    _one_of("transport", transport, get_args(Transport))
    if command is not None:
        if isinstance(command, str) or not command:
            raise ConfigError(
                f"McpTools: command must be a list of words, such as ['python', 'server.py'], "
                f"got {command!r}"
            )
        if headers:
            raise ConfigError("McpTools: headers are for a url; give a command its secrets as env")
        return
    if not str(url).startswith(("http://", "https://")):
        raise ConfigError(f"McpTools: url must begin with http:// or https://, got {url!r}")
    if env or cwd:
        raise ConfigError(
            "McpTools: env and cwd are for a command; give a url its secrets as headers"
        )


def _one_of(name: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ConfigError(f"McpTools: {name} must be one of {', '.join(choices)}, got {value!r}")


def _positive(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ConfigError(f"McpTools: {name} must be a positive number, got {value!r}")
    return value
