"""Conversations in the terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

from rich.console import Console
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from vf.traces.messages import Message
from vf.traces.trace import Trace

_STYLES = {"system": "dim", "user": "cyan", "assistant": "green", "tool": "yellow"}
_UNSEEN = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")


def print_trace(console: Console, trace: Trace) -> None:
    """Print one trace's conversation, what its tools did, and its reward by components."""
    reward = "none" if trace.reward is None else f"{trace.reward:.3f}"
    stop = trace.stop_reason.value if trace.stop_reason else "unfinished"
    head = Text.assemble(
        (visible(trace.task.id or "(no id)"), "bold"), f"  reward {reward}  {stop}"
    )
    console.print(Rule(head, align="left", style="dim"))
    events = {(event.turn, event.call_id): event for event in trace.tool_events}
    turn = -1
    for index, message in enumerate(trace.messages):
        turn += message.role == "assistant" and index >= trace.prompt_messages
        console.print(Text(message.role, style=f"bold {_STYLES[message.role]}"))
        for text in _texts(message):
            console.print(Padding(text, (0, 0, 0, 2)))
        for call in message.tool_calls:
            event = events.get((turn, call.id))
            if event is not None:
                how = "green" if event.kind == "ok" else "red"
                said = Text(f"{event.kind}, {event.seconds:.3f} s {visible(event.detail)}".strip())
                said.stylize(how)
                console.print(Padding(said, (0, 0, 0, 4)))
    if trace.error is not None:
        failure = f"{trace.error.boundary} failed: {trace.error.type}: {trace.error.message}"
        console.print(Text(visible(failure), style="red"))
    if trace.score is not None:
        console.print(Text("  ".join(_components(trace)), style="dim"))
    console.print()


def visible(text: str) -> str:
    """Return text that cannot command a terminal: what is not seen becomes its code point."""
    return "".join(
        f"<U+{ord(char):04X}>"
        if char not in "\n\t" and unicodedata.category(char) in _UNSEEN
        else char
        for char in text
    )


def _texts(message: Message) -> Iterator[Text]:
    if message.reasoning:
        yield Text(visible(message.reasoning), style="dim italic")
    if message.content or not message.tool_calls:
        yield Text(visible(message.content))
    for call in message.tool_calls:
        yield Text(f"→ {visible(call.name)} {visible(call.arguments)}", style="bold")


def _components(trace: Trace) -> Iterator[str]:
    assert trace.score is not None
    yield f"outcome={_value(trace.score.outcome)}"
    for values in (
        trace.score.penalties,
        trace.score.gates,
        trace.score.parts,
        trace.score.metrics,
    ):
        for name, value in values.items():
            yield f"{visible(name)}={_value(value)}"


def _value(value: float | None) -> str:
    if value is None:
        return "n/a"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}"
