"""A rollout's conversation as rows of a screen, made no further than they are looked at."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.style import Style
from rich.text import Text

from vf.traces.trace import Trace
from vf.traces.view.plain import visible

ROLE_STYLE = {"system": "dim", "user": "cyan", "assistant": "green", "tool": "yellow"}
_INDENT = "  "
_PIECE = 40  # rows of a paragraph that are wrapped at a time


def conversation(trace: Trace, width: int, console: Console) -> Iterator[Text]:
    """Yield the rows of a conversation, none wider than ``width`` columns.

    What the model or a tool wrote cannot command the terminal: what is not seen in it, escape
    sequences above all, becomes its code point.
    """
    events = {(event.turn, event.call_id): event for event in trace.tool_events}
    turn = -1
    for index, message in enumerate(trace.messages):
        turn += message.role == "assistant" and index >= trace.prompt_messages
        yield Text(message.role, style=f"bold {ROLE_STYLE[message.role]}")
        if message.reasoning:
            yield from _wrap(message.reasoning, "dim italic", width, console)
        if message.content or not message.tool_calls:
            yield from _wrap(message.content, "", width, console)
        for call in message.tool_calls:
            said = f"→ {call.name or '?'}({call.arguments})"
            yield from _wrap(said, "bold", width, console)
            event = events.get((turn, call.id))
            if event is not None:
                said = f"{event.kind}, {event.seconds:.3f} s {event.detail}".rstrip()
                yield from _wrap(said, "green" if event.kind == "ok" else "red", width, console)
    if trace.error is not None:
        said = f"{trace.error.boundary} failed: {trace.error.type}: {trace.error.message}"
        yield from _wrap(said, "red", width, console)


def outcome(trace: Trace) -> str:
    """Return a rollout's task and how it ended, on one line."""
    unscored = "not scored" if trace.error is None else "failed"
    reward = unscored if trace.reward is None else f"reward {trace.reward:.2f}"
    stop = f"  {trace.stop_reason.value}" if trace.stop_reason is not None else ""
    return f"{visible(trace.task.id)}: {reward}{stop}".replace("\n", " ")


def _wrap(text: str, style: str | Style, width: int, console: Console) -> Iterator[Text]:
    inner = max(2, width - len(_INDENT))
    size = _PIECE * inner
    for paragraph in text.replace("\r\n", "\n").split("\n"):
        for start in range(0, max(1, len(paragraph)), size):
            piece = visible(paragraph[start : start + size]).expandtabs(4)
            for row in Text(piece, style=style).wrap(console, inner):
                yield Text(_INDENT) + row
