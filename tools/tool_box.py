"""Running a model's tool calls: checked against the schema, concurrently, each with a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from pydantic import TypeAdapter

from vf.runtime.calling import call
from vf.runtime.errors import ConfigError, InfrastructureError, ToolError, ToolFailure, did_you_mean
from vf.traces.images import BadImage, Image, image_of, is_picture
from vf.traces.messages import Message, ToolCall, writable
from vf.traces.tools import ArgumentError, Tool, shown
from vf.traces.trace import ToolEvent

Content = str | list[str | Image]

_ANY: TypeAdapter[Any] = TypeAdapter(Any)
# Where parts of OpenAI, MCP and Anthropic hold their images.
_IMAGE_FIELDS = {"image_url", "data", "source"}

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


def render_result(value: object) -> str:
    """Return a tool's result as the text of its tool message: text as it is, the rest as JSON.

    What has no JSON but a text of its own, such as a number of NumPy's, becomes that text.

    Raises:
        TypeError: If the value says nothing to a model that reads text; says what to return.
    """
    if isinstance(value, str):
        return writable(value)
    if value is None:
        return "done"
    kind = type(value)
    if isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(
            f"it returned {kind.__name__}; return text (.decode()), or an image: vf.Image.of(data)"
        )
    if holds_image(value):
        raise TypeError(f"it returned an image ({kind.__name__}), where only text can be shown")
    try:
        return _ANY.dump_json(value).decode()
    except ValueError as error:
        if kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__:
            raise TypeError(
                f"it returned an object of {kind.__name__}; return text, or what JSON can hold"
            ) from error
        return str(value)


def holds_image(value: object) -> bool:
    """Return whether a result is a picture, or a list with a picture or an API's part of one."""
    parts = value if isinstance(value, list | tuple) else [value]
    return any(is_picture(part) or _is_image_part(part) for part in parts)


def _is_image_part(part: object) -> bool:
    if not isinstance(part, dict) or "image" not in str(part.get("type")):
        return False
    return bool(_IMAGE_FIELDS & part.keys())


def render_parts(value: object) -> list[str | Image]:
    """Return a tool's result that holds images as texts and images.

    Raises:
        BadImage: If an image cannot be read, or is beyond a limit.
        TypeError: If something else in it says nothing to a model; says what to return.
    """
    parts: list[str | Image] = []
    for part in value if isinstance(value, list | tuple) else [value]:
        if is_picture(part):
            parts.append(Image.of(part))
        elif isinstance(part, dict) and (image := image_of(part)) is not None:
            parts.append(image)
        elif isinstance(part, dict) and part.get("type") == "text":
            parts.append(writable(str(part.get("text"))))
        else:
            parts.append(render_result(part))
    return parts
