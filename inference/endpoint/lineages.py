"""The conversations of one rollout: which of them a request extends, or why it begins another."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from vf.inference.model import Conversation, Reply
from vf.traces.messages import Message, ToolCall
from vf.traces.trace import NOT_SAMPLED, Branch, Fork, Lineage, ToolEvent, Trace, Turn

_SHOWN = 60  # characters of a message that a reason quotes
_AT_ONCE = 256  # messages that are compared in one step: usually, they are the same objects


@dataclass(frozen=True, slots=True)
class Mark:
    """A point behind an answer, from which the conversation can continue.

    Attributes:
        messages: How many messages there are up to and including the answer.
        branch: The branch that holds them; None for models that only speak text.
        tokens: How many of its tokens do.
    """

    messages: int
    branch: Branch | None
    tokens: int


@dataclass(eq=False, slots=True)
class OpenLineage:
    """One conversation of the rollout.

    Attributes:
        record: It, as the trace shows it.
        index: Its index among all of them.
        marks: Behind each of its own answers.
        taken: Whether a request extends it now.
        stops: By an answer's place in the messages, the stop text that its tokens end with.
    """

    record: Lineage
    index: int
    marks: list[Mark] = field(default_factory=list)
    taken: bool = False
    stops: dict[int, str] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Start:
    """Where one answer begins.

    Attributes:
        conversation: What the model answers. It is the request's own: whatever happens to it, the
            trace and the other requests see nothing before :meth:`Lineages.commit`.
        grows: The conversation that the answer extends; None if it begins another.
        left: The conversation whose beginning it repeats.
        mark: Where it continues.
        branch: The branch that the model is to extend: that of ``grows``, or a copy.
    """

    conversation: Conversation
    grows: OpenLineage | None = None
    left: OpenLineage | None = None
    mark: Mark | None = None
    branch: Branch | None = None


class Lineages:
    """All conversations of one rollout, and their record in its trace.

    Args:
        trace: The rollout's trace, changed only by :meth:`commit`.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._key = uuid4().hex  # one server answers the whole rollout
        self._open: list[OpenLineage] = []
        self._tools: list[list[dict[str, Any]]] = []  # all that were offered, each once
        self._calls: dict[str, tuple[int, str]] = {}  # unanswered; by id: turn and name

    def begin(self, messages: Sequence[Message], tools: list[dict[str, Any]], number: int) -> Start:
        """Return where the answer to a request begins.

        A free conversation that the request extends is taken until :meth:`commit` or :meth:`undo`.

        Args:
            messages: The request's.
            tools: The tools that it offers.
            number: Differs from that of every other answer of the rollout.
        """
        tools = self._equal_tools(tools)
        lineage, mark = self._longest(messages, tools)
        if lineage is None or mark is None:
            return Start(Conversation(list(messages), tools, turn=number, key=self._key))
        shared = lineage.record.messages[: mark.messages]
        conversation = Conversation(
            [*shared, *messages[mark.messages :]],
            tools,
            encoded=mark.messages,
            turn=number,
            key=self._key,
        )
        start = Start(conversation, left=lineage, mark=mark, branch=mark.branch)
        if mark is lineage.marks[-1] and not lineage.taken:
            lineage.taken, start.grows = True, lineage
        elif mark.branch is not None:
            start.branch = _copy(mark.branch, mark.tokens)
        if start.branch is not None:
            conversation.branches.append(start.branch)
        return start

    def undo(self, start: Start) -> None:
        """Forget a request that was not answered."""
        if start.grows is not None:
            start.grows.taken = False
            if start.mark is not None and start.mark.branch is not None:
                _cut(start.mark.branch, start.mark.tokens)

    def commit(self, start: Start, reply: Reply, sampled: Message, seconds: float) -> None:
        """Write an answer into the trace.

        Args:
            start: The point where it began.
            reply: The answer, as the agent gets it.
            sampled: The answer as the model gave it, with calls that the agent does not get.
            seconds: The time that the model took.
        """
        trace, conversation, turn = self._trace, start.conversation, len(self._trace.turns)
        lineage = start.grows or self._another(start, turn)
        lineage.taken = False
        begun = start.mark.messages if start.mark is not None else 0
        new = conversation.messages[begun:]
        lineage.record.messages += [*new, reply.message]
        lineage.record.answers.append(len(lineage.record.messages) - 1)
        if reply.stop is not None:
            lineage.stops[lineage.record.answers[-1]] = reply.stop
        lineage.record.turns.append(turn)
        if start.grows is not None and any(message.role == "assistant" for message in new):
            # Only these tell which of the assistant's messages were sampled.
            trace.lineages = [entry.record for entry in self._open]
        trace.forks += [Fork(turn, fork.reason, fork.kind) for fork in conversation.forks]
        branch = conversation.branches[-1] if conversation.branches else None
        if branch is not None:
            first = start.mark.tokens if start.mark is not None and branch is start.branch else 0
            branch.turn_index[first:] = [turn] * (len(branch) - first)
            if branch is not start.branch or start.grows is None:
                lineage.record.branches.append(len(trace.branches))
                trace.branches.append(branch)
        lineage.marks.append(
            Mark(len(lineage.record.messages), branch, 0 if branch is None else len(branch))
        )
        self._note_tools(new, sampled, turn)
        trace.turns.append(
            Turn(reply.prompt_tokens, reply.completion_tokens, reply.finish_reason, seconds)
        )
        trace.messages, trace.tools = lineage.record.messages, lineage.record.tools
        trace.prompt_messages = lineage.record.prompt_messages

    def _equal_tools(self, tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the one object that stands for all equal lists of tools."""
        for earlier in self._tools:
            if earlier == tools:
                return earlier
        self._tools.append(tools)
        return tools

    def _longest(
        self, messages: Sequence[Message], tools: list[dict[str, Any]]
    ) -> tuple[OpenLineage | None, Mark | None]:
        """Return the last mark that a request has passed; that of a free head, if it can be."""
        best: tuple[OpenLineage | None, Mark | None] = None, None
        rank = (0, False)
        for lineage in self._open:
            record = lineage.record
            least = max(rank[0], lineage.marks[0].messages)
            if len(messages) < least or record.tools is not tools:
                continue
            shared = _shared(lineage, messages)
            mark = next((mark for mark in reversed(lineage.marks) if mark.messages <= shared), None)
            if mark is not None:
                free = mark is lineage.marks[-1] and not lineage.taken
                if (mark.messages, free) > rank:
                    best, rank = (lineage, mark), (mark.messages, free)
        return best

    def _another(self, start: Start, turn: int) -> OpenLineage:
        """Begin another conversation, and say why."""
        trace, conversation = self._trace, start.conversation
        fork: Fork | None = None
        if start.left is not None:
            fork = Fork(turn, "the agent asked again after the same messages", "parallel")
        elif self._open:
            start.left, fork = self._why(conversation, turn)
        record = Lineage(
            prompt_messages=len(conversation.messages),
            tools=conversation.tools,
            parent=None if start.left is None else start.left.index,
        )
        lineage = OpenLineage(record, len(self._open))
        if start.mark is not None and start.left is not None:
            record.messages += start.left.record.messages[: start.mark.messages]
            stops = start.left.stops.items()
            lineage.stops = {at: stop for at, stop in stops if at < start.mark.messages}
        if fork is not None:
            trace.forks.append(fork)
        self._open.append(lineage)
        if len(self._open) > 1:
            trace.lineages = [lineage.record for lineage in self._open]
        return lineage

    def _why(self, conversation: Conversation, turn: int) -> tuple[OpenLineage | None, Fork]:
        """Return why a request extends no conversation, and the one that it repeats, if any."""
        messages, tools = conversation.messages, conversation.tools
        nearest, shared = self._open[0], -1
        for lineage in self._open:
            if len(lineage.record.messages) < shared:
                continue
            alike = _shared(lineage, messages)
            if (alike, lineage.record.tools is tools) > (shared, nearest.record.tools is tools):
                nearest, shared = lineage, alike
        record = nearest.record
        again = shared == len(messages) == record.prompt_messages
        if record.tools is tools and again:
            return nearest, Fork(turn, "the agent asked again with the same messages", "parallel")
        if record.tools is not tools and (again or shared >= nearest.marks[0].messages):
            return None, Fork(turn, _tools_differ(record.tools, tools), "tools")
        differs = f"message {shared} differs: "
        differs += f"{_shown(record.messages, shared)} became {_shown(messages, shared)}"
        leading = 1 if messages and messages[0].role == "system" else 0
        carries = not self._sampled.isdisjoint(map(_key, messages))
        rewritten = shared > leading or carries
        return None, Fork(turn, differs, "rewritten" if rewritten else "conversation")

    @property
    def _sampled(self) -> set[tuple[str, ...]]:
        """What tells the answers so far from other messages."""
        records = [lineage.record for lineage in self._open]
        return {_key(record.messages[index]) for record in records for index in record.answers}

    def _note_tools(self, new: Sequence[Message], answer: Message, turn: int) -> None:
        """Record what became of tool calls."""
        events = self._trace.tool_events
        for message in new:
            if message.role == "tool" and message.tool_call_id in self._calls:
                called, name = self._calls.pop(message.tool_call_id)
                events.append(ToolEvent(called, message.tool_call_id, name, "ok"))
        for call in answer.tool_calls:
            if call.malformed is None:
                self._calls[call.id] = turn, call.name
            else:
                events.append(ToolEvent(turn, call.id, call.name, "malformed", call.malformed))


def _key(message: Message) -> tuple[str, ...]:
    return message.role, message.content, *(call.id for call in message.tool_calls)


def same(ours: Message, theirs: Message, stop: str = "") -> bool:
    """Return whether an agent sends back a message that it got or sent before.

    Arguments of calls may be spaced and ordered in another way, and reasoning may be left out. The
    stop text that ended an answer may be put back: it was sampled.
    """
    if ours is theirs or ours == theirs:
        return True
    return (
        ours.role == theirs.role == "assistant"
        and theirs.content in (ours.content, ours.content + stop)
        and (not theirs.reasoning or theirs.reasoning == ours.reasoning)
        and len(ours.tool_calls) == len(theirs.tool_calls)
        and all(map(_same_call, ours.tool_calls, theirs.tool_calls))
    )


def _same_call(ours: ToolCall, theirs: ToolCall) -> bool:
    if (ours.id, ours.name) != (theirs.id, theirs.name):
        return False
    return ours.arguments == theirs.arguments or (
        _canonical(ours.arguments) == _canonical(theirs.arguments)
    )


def _canonical(arguments: str) -> str:
    try:
        # JavaScript has no integers: 2.0 comes back as 2, and one of 19 digits changed.
        return json.dumps(json.loads(arguments or "{}", parse_int=float), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments


def _shared(lineage: OpenLineage, requested: Sequence[Message]) -> int:
    """Return how many messages a conversation and a request have in common at the beginning."""
    messages, stops = lineage.record.messages, lineage.stops
    least = min(len(messages), len(requested))
    for first in range(0, least, _AT_ONCE):
        span = range(first, min(first + _AT_ONCE, least))
        if messages[first : span.stop] == requested[first : span.stop]:
            continue
        for index in span:
            if not same(messages[index], requested[index], stops.get(index, "")):
                return index
    return least


def _tools_differ(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> str:
    old, new = ({str(_name(tool)) for tool in tools} for tools in (before, after))
    added, gone = sorted(new - old), sorted(old - new)
    parts = [f"added {', '.join(added)}"] * bool(added) + [f"left out {', '.join(gone)}"] * bool(
        gone
    )
    return f"the tools differ: {'; '.join(parts) or 'their descriptions or their order'}"


def _name(tool: dict[str, Any]) -> Any:
    function = tool.get("function")
    return function.get("name") if isinstance(function, dict) else None


def _shown(messages: Sequence[Message], index: int) -> str:
    if index >= len(messages):
        return "nothing"
    message = messages[index]
    text = message.content or ", ".join(call.name for call in message.tool_calls)
    cut = text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
    return f"{message.role} {cut!r}"


def _copy(branch: Branch, tokens: int) -> Branch:
    """Return the beginning of a branch as context: its sampled tokens carry loss only once."""
    return Branch(
        branch.token_ids[:tokens],
        [0] * tokens,
        [0.0] * tokens,
        branch.turn_index[:tokens],
        [NOT_SAMPLED] * tokens,
        branch.experts[:tokens],
        images=[image for image in branch.images if image.at < tokens],
    )


def _cut(branch: Branch, tokens: int) -> None:
    branch.images = [image for image in branch.images if image.at < tokens]
    for name in branch.__slots__:
        if name != "images":
            del getattr(branch, name)[tokens:]
