"""Conversations in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from vf.runtime.visible import visible
from vf.traces.images import FOLDER, Image
from vf.traces.messages import Message
from vf.traces.simulated_users import UserRecord, user_of
from vf.traces.trace import Lineage, Trace

_STYLES = {"system": "dim", "user": "cyan", "assistant": "green", "tool": "yellow"}
# Other ends of an answer than its own; the same words as ENDS in conversation.js.
ENDS = {
    "length": "cut at the token limit",
    "content_filter": "stopped by the provider's content filter",
    "refusal": "refused, as the provider says",
}


def print_trace(console: Console, trace: Trace) -> None:
    """Print one trace's conversation, what its tools did, and its reward by components."""
    reward = "none" if trace.reward is None else f"{trace.reward:.3f}"
    stop = trace.stop_reason.value if trace.stop_reason else "unfinished"
    head = Text.assemble(
        (visible(trace.task.id or "(no id)"), "bold"), f"  reward {reward}  {stop}"
    )
    console.print(Rule(head, align="left", style="dim"))
    shown: set[str] = set()
    for number, lineage in enumerate(trace.conversations):
        if len(trace.conversations) > 1:
            console.print(Text(_begins(trace, number, lineage), style="bold"))
        _print_conversation(console, trace, lineage, shown)
        shown.update(map(repr, lineage.messages))
    if (user := user_of(trace)) is not None:
        _print_user(console, user)
    for text in _left(trace.info):
        console.print(text)
    if trace.error is not None:
        failure = f"{trace.error.boundary} failed: {trace.error.type}: {trace.error.message}"
        console.print(Text(visible(failure), style="red"))
    if trace.score is not None:
        console.print(Text("  ".join(_components(trace)), style="dim"))
    console.print()


def _begins(trace: Trace, number: int, lineage: Lineage) -> str:
    """Return which conversation it is, and why it began."""
    parts = [f"conversation {number + 1} of {len(trace.conversations)}"]
    parts += [
        f"{fork.kind}: {visible(fork.reason)}"
        for fork in trace.forks
        if fork.turn in lineage.turns[:1]
    ]
    return ", ".join(parts)


def _print_conversation(console: Console, trace: Trace, lineage: Lineage, shown: set[str]) -> None:
    """Print the messages of a conversation; those of its prompt that were ``shown`` are counted."""
    events = {(event.turn, event.call_id): event for event in trace.tool_events}
    turn_of, again = lineage.turn_of, 0
    for index, message in enumerate(lineage.messages):
        if index < lineage.prompt_messages and repr(message) in shown:
            again += 1
            continue
        if again:
            console.print(Text(f"({again} message{'s' * (again > 1)} as before)", style="dim"))
            again = 0
        turn = turn_of.get(index, -1)
        ending = (
            ENDS.get(trace.turns[turn].finish_reason, "") if 0 <= turn < len(trace.turns) else ""
        )
        head = Text(message.role, style=f"bold {_STYLES[message.role]}")
        console.print(head.append(f"  {ending}", style="yellow") if ending else head)
        for text in _texts(message):
            console.print(Padding(text, (0, 0, 0, 2)))
        for call in message.tool_calls:
            event = events.get((turn, call.id))
            if event is not None:
                how = "green" if event.kind == "ok" else "red"
                became = Text(
                    f"{event.kind}, {event.seconds:.3f} s {visible(event.detail)}".strip()
                )
                became.stylize(how)
                console.print(Padding(became, (0, 0, 0, 4)))


def _print_user(console: Console, user: UserRecord) -> None:
    """Print the conversation as the simulated user sees it."""
    ended = "" if user.ended is None else f", ended: {user.ended}"
    head = (
        f"the simulated user's side, played by {user.played_by}: {user.requests} requests, "
        f"{user.prompt_tokens} prompt tokens, {user.completion_tokens} sampled tokens{ended}"
    )
    console.print(Text(visible(head), style="bold"))
    names = {"user": "the policy", "assistant": "the user"}
    for message in user.messages:
        name = names.get(message.role, message.role)
        console.print(Padding(Text(name, style="bold dim"), (0, 0, 0, 2)))
        for text in _texts(message):
            console.print(Padding(text, (0, 0, 0, 4)))


def _left(info: Mapping[str, Any]) -> Iterator[Text | Padding]:
    """Yield what an agent returned or printed, how its program ended, and the files it left."""
    ended = info.get("program")
    parts = {"output": info.get("output")}
    if isinstance(ended, dict):
        parts |= {f"program: {name}": value for name, value in ended.items()}
    if isinstance(files := info.get("files"), dict):
        parts |= {f"file {path}": content for path, content in files.items()}
    for name, value in parts.items():
        if value is None or value == "":
            continue
        yield Text(visible(name), style="bold")
        yield Padding(Text(visible(value if isinstance(value, str) else str(value))), (0, 0, 0, 2))


def _texts(message: Message) -> Iterator[Text]:
    if message.reasoning:
        yield Text(visible(message.reasoning), style="dim italic")
    for part in (
        message.parts if message.content or message.images or not message.tool_calls else []
    ):
        if isinstance(part, Image):
            size = f"{part.width} x {part.height}" if part.width else part.media_type
            yield Text(f"[image, {size}: {FOLDER}/{part.name}]", style="dim")
        else:
            yield Text(visible(part))
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
