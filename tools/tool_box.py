"""Running a model's tool calls: checked against the schema, concurrently, each with a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from vf.runtime.calling import call
from vf.runtime.errors import ConfigError, InfrastructureError, ToolError, ToolFailure, did_you_mean
from vf.traces.images import BadImage, Image
from vf.traces.messages import Message, ToolCall, writable
from vf.traces.tool_results import holds_image, render_parts, render_result
from vf.traces.tools import ArgumentError, Tool, shown
from vf.traces.trace import ToolEvent

Content = str | list[str | Image]

_deadline: ContextVar[asyncio.Timeout | None] = ContextVar("deadline", default=None)


@contextmanager
def off_the_clock() -> Iterator[None]:
    """Stop the clock of the tool call that this runs in, if it does.

    For a coroutine that waits through no fault of the model's, say, for a sandbox while all are
    taken: the wait counts against the rollout's time limit only.
    """
    deadline = _deadline.get()
    when = None if deadline is None else deadline.when()
    if deadline is None or when is None:
        yield
        return
    loop = asyncio.get_running_loop()
    left = when - loop.time()
    deadline.reschedule(None)
    try:
        yield
    finally:
        deadline.reschedule(loop.time() + left)


class ToolBox:
    """The tools of one episode, and what became of every call.

    Args:
        tools: The tools.
        events: Continue this record; by default an empty one.

    Raises:
        ConfigError: If two tools share a name.
    """

    def __init__(self, tools: Sequence[Tool], events: list[ToolEvent] | None = None) -> None:
        self.tools = {tool.name: tool for tool in tools}
        if len(self.tools) != len(tools):
            names = [tool.name for tool in tools]
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigError(f"two tools are called {twice!r}")
        self.events: list[ToolEvent] = [] if events is None else events

    def schemas(self) -> list[dict[str, Any]]:
        """Return the tools in OpenAI's format, in a stable order."""
        return [tool.schema() for tool in self.tools.values()]

    async def run(self, calls: Sequence[ToolCall], *, turn: int, timeout: float) -> list[Message]:
        """Run the calls of one turn concurrently; return their tool messages in the calls' order.

        A call that is malformed, unknown, ill-typed or rejected by its tool gets a message that
        tells the model so, and a typed event.

        Args:
            calls: The calls of one turn.
            turn: Number of the turn, for the events.
            timeout: Seconds for each call.

        Raises:
            ToolFailure: If a tool raised, or ran out of time. The other calls are cancelled, which
                their events say.
            ConfigError: If a tool is set up wrongly.
        """
        events = [ToolEvent(turn, call.id, call.name, "ok") for call in calls]
        self.events += events
        runs = [
            self._run_one(call, event, timeout) for call, event in zip(calls, events, strict=True)
        ]
        results = await _all(runs)
        return [
            Message.of("tool", content, tool_call_id=call.id, name=call.name)
            for call, content in zip(calls, results, strict=True)
        ]

    async def _run_one(self, request: ToolCall, event: ToolEvent, timeout: float) -> Content:
        if request.malformed is not None:
            event.kind, event.detail = "malformed", request.malformed
            return f"Error: the tool call could not be read: {request.malformed}"
        tool = self.tools.get(request.name)
        if tool is None:
            name = shown(request.name)
            event.kind, event.detail = "unknown_tool", name
            hint = did_you_mean(name, self.tools)
            names = ", ".join(self.tools) or "none"
            return f"Error: there is no tool {name!r}.{hint} Tools: {names}."
        try:
            arguments = tool.validate(request.arguments)
        except ArgumentError as error:
            event.kind, event.detail = error.fault, str(error)
            return f"Error: {error}"
        started = time.perf_counter()
        try:
            async with asyncio.timeout(timeout) as deadline:
                _deadline.set(deadline)
                result = await call(tool.fn, **arguments)
                return await _content_of(tool, result)
        except ToolError as error:
            event.kind, event.detail = "rejected", str(error)
            return f"Error: {error}"
        except BadImage as error:
            event.kind, event.detail = "rejected", str(error)
            return f"Error: the result of {tool.name} cannot be shown: {error}"
        except (InfrastructureError, ConfigError) as error:
            event.kind, event.detail = "error", str(error)
            raise
        except asyncio.CancelledError:
            event.kind, event.detail = "error", "cancelled"
            raise
        except Exception as error:
            reason = (
                f"took longer than its {timeout:g} s"
                if deadline.expired()
                else f"raised {type(error).__name__}: {error}"
            )
            event.kind, event.detail = "error", reason
            raise ToolFailure(f"tool {tool.name!r} {reason}") from error
        finally:
            _deadline.set(None)
            event.detail = writable(event.detail)
            event.seconds = time.perf_counter() - started


async def _content_of(tool: Tool, result: object) -> Content:
    """Return a result as text, or as texts and images.

    Raises:
        ToolFailure: If it is nothing that a model could read.
        BadImage: If an image in it cannot be read, or is beyond a limit.
    """
    try:
        if holds_image(result):  # to decode one takes up to a second
            return await asyncio.to_thread(render_parts, result)
        return render_result(result)
    except TypeError as error:
        raise ToolFailure(f"tool {tool.name!r}: {error}") from error


async def _all(runs: list[Coroutine[Any, Any, Content]]) -> list[Content]:
    """Run them concurrently; if one raises, cancel the others."""
    if len(runs) == 1:  # usually, and then a task would only cost
        return [await runs[0]]
    tasks = [asyncio.create_task(run) for run in runs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
