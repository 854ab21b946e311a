# What others write need not be typed as strictly as ours.
# mypy: ignore-errors
"""A harness for verifiers' own run of a v1 taskset: its ``null`` harness's loop, in this process.

verifiers' null harness is a script that ``uv`` fetches packages for, which tests cannot do.
"""

from __future__ import annotations

import json
from typing import Any

import verifiers.v1 as vf
from openai import AsyncOpenAI

__all__ = ["LoopHarness"]


class LoopConfig(vf.HarnessConfig):
    pass


class LoopHarness(vf.Harness[LoopConfig]):
    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    NEEDS_CONTAINER = False
    EXECUTES_CODE = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
        **kwargs: Any,
    ) -> vf.ProgramResult:
        system, prompt = self.resolve_prompt(data)
        messages: list[Any] = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": prompt})
        tools, places = [], {}
        for server, url in mcp_urls.items():
            async with session(url) as client:
                for tool in (await client.list_tools()).tools:
                    name = f"{server}_{tool.name}" if server else tool.name
                    schema = getattr(tool, "inputSchema", None) or tool.input_schema
                    places[name] = url, tool.name
                    function = {
                        "name": name,
                        "description": tool.description or "",
                        "parameters": schema,
                    }
                    tools.append({"type": "function", "function": function})
        async with AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0) as model:
            while True:
                try:
                    done = await model.chat.completions.create(
                        model=ctx.model, messages=messages, tools=tools or None
                    )
                except Exception:
                    if trace.stop_condition is None:
                        raise
                    return vf.ProgramResult(exit_code=0, stdout="", stderr="")
                message = done.choices[0].message
                messages.append(message.model_dump(exclude_none=True))
                for call in message.tool_calls or ():
                    url, raw = places[call.function.name]
                    async with session(url) as client:
                        arguments = json.loads(call.function.arguments)
                        result = await client.call_tool(raw, arguments)
                    text = "\n".join(block.text for block in result.content)
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
                if not message.tool_calls:
                    return vf.ProgramResult(exit_code=0, stdout="", stderr="")


def session(url: str) -> Any:
    """Return a client of an MCP server, of either version of the package."""
    try:
        from mcp import Client
    except ImportError:
        return old_session(url)
    return Client(url)


def old_session(url: str) -> Any:
    from contextlib import asynccontextmanager

    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    @asynccontextmanager
    async def opened() -> Any:
        async with (
            streamable_http_client(url) as (read, write, *_),
            ClientSession(read, write) as client,
        ):
            await client.initialize()
            yield client

    return opened()
