"""A server of the official package: over standard streams, or over HTTP where a port is given."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import Annotated, Literal

try:
    from mcp.server.mcpserver import Context, Image
    from mcp.server.mcpserver import MCPServer as McpServer
    from mcp.server.mcpserver.exceptions import ToolError
except ImportError:  # mcp 1
    from mcp.server.fastmcp import Context, Image
    from mcp.server.fastmcp import FastMCP as McpServer
    from mcp.server.fastmcp.exceptions import ToolError
from pydantic import Field
from starlette.requests import Request

server = McpServer("test")
counts: dict[str, int] = {}


def add(a: int, b: int, sign: Literal["+", "-"] = "+") -> int:
    """Add two integers.

    The sign belongs to the second.
    """
    return a + b if sign == "+" else a - b


def calculate(
    op: Annotated[Literal["+", "-", "*"], Field(description="The operation.")],
    a: Annotated[int, Field(description="Left operand.")],
    b: Annotated[int, Field(description="Right operand.")],
) -> int:
    """The tool of our environment calculator."""
    return {"+": a + b, "-": a - b, "*": a * b}[op]


def count(context: Context) -> int:
    """Count the calls of this session."""
    request = context.request_context.request
    key = ""
    if isinstance(request, Request):
        key = request.headers.get("mcp-session-id") or request.query_params["session_id"]
    counts[key] = counts.get(key, 0) + 1
    return counts[key]


def shout(text: str, times: int = 1) -> str:
    """Say it back."""
    return text.upper() * times


def refuse(reason: str) -> str:
    """Fail, for a reason."""
    raise ToolError(reason)


def environment(name: str) -> str:
    """Return an environment variable."""
    return os.environ.get(name, "(not set)")


def header(name: str, context: Context) -> str:
    """Return a header of the request."""
    request = context.request_context.request
    assert isinstance(request, Request)
    return request.headers.get(name, "(not sent)")


async def sleep(seconds: float) -> str:
    """Take a while."""
    print("sleeping now", file=sys.stderr, flush=True)
    await asyncio.sleep(seconds)
    return "awake"


def die() -> str:
    """End the server in the middle of a call."""
    print("something terrible has happened", file=sys.stderr, flush=True)
    os._exit(3)


def child() -> int:
    """Start a process that outlives the server, unless something ends it."""
    return subprocess.Popen(["sleep", "600"]).pid


def pid() -> int:
    """Return the server's own process id."""
    return os.getpid()


def picture() -> Image:
    """Return a picture."""
    return Image(data=b"not really one", format="png")


DESCRIPTIONS = {"calculate": "Apply one operation to two integers."}
for function in (
    add,
    calculate,
    count,
    shout,
    refuse,
    environment,
    header,
    sleep,
    die,
    child,
    pid,
    picture,
):
    server.tool(description=DESCRIPTIONS.get(function.__name__))(function)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        server.run()
    else:
        import uvicorn

        app = server.sse_app() if sys.argv[2:] == ["sse"] else server.streamable_http_app()
        uvicorn.run(app, port=int(sys.argv[1]), timeout_graceful_shutdown=1)
