"""A few sampled traces as HTML, in which nothing that was said can be markup."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from vf.runtime.visible import visible
from vf.traces.messages import Message, ToolCall
from vf.traces.trace import Lineage, Score, ToolEvent, Trace
from vf.traces.view.sources import Source, Unreadable, read

READ_BYTES = 32 << 20  # of a file, so that a page is quickly written whatever a step holds
CHARACTERS = 4000  # of one text
MESSAGES = 20  # of a conversation's beginning, and as many of its end
CONVERSATIONS = 4  # of a trace, the last ones


def escape(text: str) -> str:
    """Return text that cannot be markup, and in which nothing is hidden."""
    return html.escape(visible(text))


def choose(file: Path) -> list[tuple[str, Trace]]:
    """Return the best, the median and the worst trace of a file, and the first that failed.

    Of a large file, the first :data:`READ_BYTES` are looked at. Lines that are no traces are
    passed over; a file that is not there has none.
    """
    if not file.exists():
        return []
    scored: list[tuple[float, Trace]] = []
    failed: Trace | None = None
    size = 0

    def advance(count: int) -> None:
        nonlocal size
        size += count

    for trace in read(Source(file, {}), advance):
        if isinstance(trace, Unreadable):
            continue
        trace.branches = []  # the larger part of it, and not shown
        if trace.reward is not None:
            scored.append((trace.reward, trace))
        elif failed is None and trace.error is not None:
            failed = trace
        if size > READ_BYTES:
            break
    ranked = [trace for _, trace in sorted(scored, key=lambda pair: -pair[0])]
    ranks = {"best": 0, "median": len(ranked) // 2, "worst": len(ranked) - 1}
    chosen: dict[int, tuple[str, Trace]] = {}
    for name in ("best", "worst", "median"):
        if ranked:
            chosen.setdefault(ranks[name], (name, ranked[ranks[name]]))
    return [
        *(chosen[rank] for rank in sorted(chosen)),
        *([("failed", failed)] if failed is not None else []),
    ]


def render(chosen: Sequence[tuple[str, Trace]]) -> str:
    """Return traces with their names as HTML; each can be opened."""
    return "".join(_trace(name, trace) for name, trace in chosen)


def _trace(name: str, trace: Trace) -> str:
    reward = "no reward" if trace.reward is None else f"{trace.reward:.3f}"
    bad = sum(event.kind != "ok" for event in trace.tool_events)
    facts = [
        _count(len(trace.turns), "turn"),
        *([_count(len(trace.lineages), "conversation")] if len(trace.lineages) > 1 else []),
        _count(trace.completion_tokens, "sampled token"),
        *([_count(len(trace.tool_events), "call")] if trace.tool_events else []),
        *([f"{bad} failed"] if bad else []),
        trace.stop_reason.value if trace.stop_reason else "unfinished",
    ]
    return (
        f'<details class="trace"><summary><span class="badge">{escape(name)}</span> '
        f'<b class="{_level(trace.reward)}">{reward}</b> <span class="task">'
        f"{escape(_one_line(trace.task.id))}</span> "
        f'<span class="faint">{escape(" · ".join(facts))}</span></summary>'
        f"{_score(trace.score)}{''.join(_conversation(trace))}</details>"
    )


def _conversation(trace: Trace) -> Iterator[str]:
    if trace.error is not None:
        error = trace.error
        yield (
            f'<div class="card failure"><h3>Failed <span class="badge bad">'
            f"{escape(error.boundary)}</span> {escape(error.type)}</h3>{_text(error.message)}</div>"
        )
    if trace.task.answer is not None:
        answer = trace.task.answer
        words = answer if isinstance(answer, str) else json.dumps(answer, default=str)
        yield f'<div class="card answer"><h3>Expected answer</h3>{_text(words, "mono")}</div>'
    conversations = trace.conversations
    for number, conversation in enumerate(
        conversations[-CONVERSATIONS:], max(0, len(conversations) - CONVERSATIONS)
    ):
        if len(conversations) > 1:
            why = [f"{f.kind}: {f.reason}" for f in trace.forks if f.turn in conversation.turns[:1]]
            caption = ", ".join([f"conversation {number + 1} of {len(conversations)}", *why])
            yield f'<p class="rule">{escape(_one_line(caption))}</p>'
        yield from _messages(trace, conversation)


def _messages(trace: Trace, conversation: Lineage) -> Iterator[str]:
    events = {(event.turn, event.call_id): event for event in trace.tool_events}
    turn_of, left = conversation.turn_of, len(conversation.messages) - 2 * MESSAGES
    for index, message in enumerate(conversation.messages):
        turn = turn_of.get(index, -1)
        if left > 0 and MESSAGES <= index < MESSAGES + left:
            if index == MESSAGES:
                yield f'<p class="rule">{_count(left, "message")} between, not shown here</p>'
            continue
        yield _message(message, {c.id: events.get((turn, c.id)) for c in message.tool_calls})


def _message(message: Message, events: dict[str, ToolEvent | None]) -> str:
    name = f" <code>{escape(_one_line(message.name))}</code>" if message.name else ""
    parts = [f'<article class="message {message.role}"><h3>{message.role}{name}</h3>']
    if message.reasoning:
        parts.append(f'<div class="reasoning faint">{_text(message.reasoning)}</div>')
    if message.content:
        parts.append(_text(message.content))
    elif not message.tool_calls and not message.reasoning:
        parts.append('<p class="faint">(empty)</p>')
    parts += [_call(call, events[call.id]) for call in message.tool_calls]
    return "".join([*parts, "</article>"])


def _call(call: ToolCall, event: ToolEvent | None) -> str:
    badge, why = "", call.malformed or ""
    if event is not None:
        how = "good" if event.kind == "ok" else "bad" if event.kind == "error" else "warn"
        badge = (
            f'<span class="badge {how}">{event.kind.replace("_", " ")}</span>'
            f'<span class="faint">{event.seconds:.3g} s</span>'
        )
        why = why or (event.detail if event.kind != "ok" else "")
    note = f'<p class="bad-text">{escape(_cut(why))}</p>' if why else ""
    return (
        f'<div class="call"><header><span class="faint">call</span>'
        f"<code>{escape(_one_line(call.name) or '(malformed)')}</code>{badge}</header>"
        f"{_text(call.arguments, 'mono')}{note}</div>"
    )


def _score(score: Score | None) -> str:
    """Return the components of a reward as a table row each."""
    if score is None:
        return ""
    rows = [("outcome", "", score.outcome)]
    for kind, values in (
        ("penalty", score.penalties),
        ("gate", score.gates),
        ("part", score.parts),
        ("metric", score.metrics),
    ):
        rows += [(name, kind, value) for name, value in values.items()]
    cells = "".join(
        f"<tr><td>{escape(_one_line(name))}</td><td class='faint'>{kind}</td>"
        f"<td class='num'>{_value(value)}</td></tr>"
        for name, kind, value in rows
    )
    return f'<table class="components">{cells}</table>'


def _value(value: float | None) -> str:
    if value is None:
        return "n/a"
    if isinstance(value, bool):
        return "kept" if value else "broken"
    return f"{value:.3g}"


def _text(text: str, style: str = "") -> str:
    return f'<div class="text {style}">{escape(_cut(text))}</div>'


def _cut(text: str) -> str:
    """Return a text's beginning, and how much is left; vf-rl view shows it whole."""
    left = len(text) - CHARACTERS
    return f"{text[:CHARACTERS]}\n[{left:,} characters left]" if left > 0 else text


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _level(reward: float | None) -> str:
    if reward is None:
        return "none"
    return "full" if reward >= 0.999 else "zero" if reward <= 0.001 else "part"
