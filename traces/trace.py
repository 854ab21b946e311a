"""The record of one rollout: what was said, which tokens carry loss, and how good it was."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, PlainSerializer, TypeAdapter, with_config

from vf.runtime.errors import ConfigError
from vf.traces.failure import Failure as Failure
from vf.traces.images import Image, by_reference
from vf.traces.masked_tokens import NOT_SAMPLED as NOT_SAMPLED
from vf.traces.masked_tokens import Branch as Branch
from vf.traces.messages import Message, recorded
from vf.traces.packed import pack_branches, pack_lineages, unpack_branches, unpack_lineages
from vf.traces.roles import RoleRecord
from vf.traces.task import Task


class StopReason(StrEnum):
    """Why a rollout ended."""

    TERMINATED = "terminated"  # the environment said so
    TRUNCATED = "truncated"  # the environment cut it short
    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"  # the episode's budget of sampled tokens is spent
    MAX_SEQ_LEN = "max_seq_len"  # the context is full
    MAX_SECONDS = "max_seconds"  # an evaluation's limit on the wall time of one rollout
    MAX_COST = "max_cost"  # an evaluation's limit on the price of one rollout
    ERROR = "error"  # the episode itself failed; see Trace.error


ToolEventKind = Literal[
    "ok",
    "rejected",  # the tool raised ToolError
    "unknown_tool",
    "malformed",  # the call itself could not be parsed
    "invalid_json",
    "invalid_arguments",
    "error",  # the tool failed: an infrastructure error
]


@dataclass(slots=True)
class ToolEvent:
    """What became of one tool call. Rewards read these, never text that a model can imitate.

    Attributes:
        turn: Zero-based turn of the call.
        call_id: The call's id.
        name: The tool's name as called.
        kind: ``ok``, or what went wrong.
        detail: The reason, if it went wrong.
        seconds: How long the tool ran.
    """

    turn: int
    call_id: str
    name: str
    kind: ToolEventKind
    detail: str = ""
    seconds: float = 0.0


def _packed(branches: list[Branch]) -> list[dict[str, Any]]:
    return pack_branches([{name: getattr(b, name) for name in b.__slots__} for b in branches])


_PackedBranches = Annotated[
    list[Branch], PlainSerializer(_packed, when_used="json"), BeforeValidator(unpack_branches)
]


ForkKind = Literal[
    "template",  # the chat template cannot extend what was sampled
    "rewritten",  # the agent changed earlier messages: a compaction, say
    "tools",  # the agent offers other tools than before
    "conversation",  # another conversation began: a sub-agent's, say
    "parallel",  # the agent asked again from a point that had been answered
    "compacted",  # the context was nearly full, and the model's summary took its place
    "dropped",  # the context was nearly full, and old tool results were left out
]


@dataclass(slots=True)
class Fork:
    """Where the context could not grow, so that a new branch began."""

    turn: int
    reason: str
    kind: ForkKind = "template"


@dataclass(slots=True)
class Lineage:
    """One conversation of an agent, which may have several in a rollout.

    Attributes:
        messages: Everything said in it, in order.
        prompt_messages: How many of them came before its first answer.
        tools: The tools on offer, in OpenAI's format.
        branches: The places in ``Trace.branches`` of its tokens; none without tokens.
        turns: The places in ``Trace.turns`` of its answers, in the order of the messages. Those
            that it shares with the conversation that it left are not among them.
        answers: The places in ``messages`` of the same answers. Other messages of an assistant
            were written by the agent, or sampled in another conversation.
        parent: The place in ``Trace.lineages`` of the conversation that it left, and whose
            beginning it repeats; None where it begins by itself.
        role: Whose it is, in an episode with several agents; the name of a sub-agent; otherwise
            empty.
    """

    messages: list[Message] = field(default_factory=list)
    prompt_messages: int = 0
    tools: list[dict[str, Any]] = field(default_factory=list)
    branches: list[int] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    parent: int | None = None
    role: str = ""

    @property
    def turn_of(self) -> dict[int, int]:
        """The turn of each answer, by its place in ``messages``."""
        return dict(zip(self.answers, self.turns, strict=True))


def _naming_images(task: Task) -> dict[str, Any]:
    values = {name: getattr(task, name) for name in task.__slots__}
    return values | {"prompt": by_reference(task.prompt)[0]}


def _packed_lineages(lineages: list[Lineage]) -> list[dict[str, Any]]:
    names = Lineage.__dataclass_fields__
    packed = pack_lineages(
        [{name: getattr(lineage, name) for name in names} for lineage in lineages]
    )
    for row in packed:
        row["messages"] = [
            recorded(entry) if isinstance(entry, Message) else entry for entry in row["messages"]
        ]
    return packed


_PackedLineages = Annotated[
    list[Lineage],
    PlainSerializer(_packed_lineages, when_used="json"),
    BeforeValidator(unpack_lineages),
]


# Why an answer ended: by itself, or cut at a limit; or a provider's filter removed it or cut it
# off, or the provider says that its model refused. All of them are scored.
FinishReason = Literal["stop", "length", "content_filter", "refusal"]


@dataclass(slots=True)
class Turn:
    """One answer of the model. Token counts are 0 where the API does not tell them."""

    prompt_tokens: int
    completion_tokens: int
    finish_reason: FinishReason
    seconds: float


@dataclass(slots=True)
class Score:
    """How good a rollout was: the reward, and every raw component by name.

    A component that is None says that it did not apply to this rollout.

    Attributes:
        reward: What training sees, in [0, 1]; None if the rollout cannot be scored, which is not
            the same as 0: it is not trained on.
        outcome: How well the task was solved, in [0, 1]; None if that cannot be said.
        penalties: Each penalty in [0, 1], before its weight.
        gates: Whether each gate was kept; False makes the reward 0.
        parts: Each group reward, and each function of a weighted sum, before its weight.
        metrics: Measured, never part of the reward.
        turn_costs: The reward that a penalty took, by turn. Only penalties that know their turns
            and cost something are listed.
    """

    reward: float | None
    outcome: float | None
    penalties: dict[str, float | None] = field(default_factory=dict)
    gates: dict[str, bool | None] = field(default_factory=dict)
    parts: dict[str, float | None] = field(default_factory=dict)
    metrics: dict[str, float | None] = field(default_factory=dict)
    turn_costs: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Origin:
    """Which rollout of a training run a trace is.

    Attributes:
        step: Number of the training step; the first is 1.
        group: Number of the group, in the sequence of all draws of tasks.
        rollout: Its place in the group.
    """

    step: int
    group: int
    rollout: int


@with_config(ConfigDict(ser_json_inf_nan="constants"))  # a null logprob could not be read back
@dataclass(slots=True)
class Trace:
    """The complete record of one rollout; one JSON line in a traces file.

    ``score`` is None if the rollout failed before it was scored or its scoring failed. ``reward``
    is None in these cases, and if the rubric said that it cannot be scored. This is not the same as
    a reward of 0. If only the scoring failed, ``stop_reason`` says how the episode ended, and the
    trace can be scored again. The first ``prompt_messages`` of ``messages`` are those that
    ``reset`` returned, and ``tools`` the schemas of the available tools, in OpenAI's format.
    ``info`` is the environment's: what its steps returned as info. ``origin`` is None outside
    training. If an agent had several conversations, or wrote some of its model's messages itself,
    ``lineages`` holds all of them, and ``messages``, ``prompt_messages`` and ``tools`` are those of
    the one that was answered last; otherwise ``lineages`` is empty. ``conversations`` and
    ``answers`` are the same for both. With several agents, each role has a conversation of its own
    in ``lineages``, and ``roles`` holds what each has earned. The conversations of sub-agents are
    in ``lineages`` as well, and ``messages`` are those of their caller.
    """

    environment: str
    task: Annotated[Task, PlainSerializer(_naming_images, when_used="json")]
    seed: int
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    messages: list[Message] = field(default_factory=list)
    prompt_messages: int = 0
    tools: list[dict[str, Any]] = field(default_factory=list)
    branches: _PackedBranches = field(default_factory=list)
    forks: list[Fork] = field(default_factory=list)
    lineages: _PackedLineages = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    tool_events: list[ToolEvent] = field(default_factory=list)
    step_rewards: list[float] = field(default_factory=list)
    roles: dict[str, RoleRecord] = field(default_factory=dict)
    score: Score | None = None
    stop_reason: StopReason | None = None
    error: Failure | None = None
    timing: dict[str, float] = field(default_factory=dict)  # seconds by phase
    info: dict[str, Any] = field(default_factory=dict)
    origin: Origin | None = None

    def __repr__(self) -> str:
        """Return it in a line: whoever wants the messages prints them."""
        count = len(self.turns)
        summary = f"{count} turn{'s' * (count != 1)}"
        summary += ", not scored" if self.reward is None else f", reward {self.reward:.3f}"
        if failed := sum(event.kind != "ok" for event in self.tool_events):
            summary += f", {failed} of {len(self.tool_events)} tool calls failed"
        if self.error is not None:
            message = " ".join(self.error.message.split())[:100]
            summary += f", error in the {self.error.boundary}: {message}"
        return f"<Trace of {self.environment}, task {self.task.id!r}: {summary}>"

    @property
    def reward(self) -> float | None:
        """The reward, or None if an error, or the rubric, left the rollout without one."""
        return None if self.score is None else self.score.reward

    @property
    def conversations(self) -> list[Lineage]:
        """Every conversation, in the order in which they began; at least one."""
        if self.lineages:
            return self.lineages
        first = self.prompt_messages
        numbered = enumerate(self.messages[first:], first)
        answers = [index for index, message in numbered if message.role == "assistant"]
        return [
            Lineage(
                messages=self.messages,
                prompt_messages=first,
                tools=self.tools,
                branches=[*range(len(self.branches))],
                turns=[*range(len(answers))],
                answers=answers,
            )
        ]

    @property
    def branch_roles(self) -> list[str]:
        """The role or sub-agent of each branch; empty for the conversation of a single agent."""
        roles = {index: lineage.role for lineage in self.lineages for index in lineage.branches}
        return [roles.get(index, "") for index in range(len(self.branches))]

    @property
    def answers(self) -> list[Message]:
        """Every message that the model sampled, in whatever conversation, in order of the turns."""
        messages = {
            turn: lineage.messages[index]
            for lineage in self.conversations
            for index, turn in lineage.turn_of.items()
        }
        return [messages[turn] for turn in sorted(messages)]

    @property
    def reply(self) -> str:
        """The text of the model's last message, or ``""`` if it never answered."""
        for message in reversed(self.messages[self.prompt_messages :]):
            if message.role == "assistant":
                return message.content
        return ""

    @property
    def ended(self) -> bool:
        """Whether the episode ended, so that it can be scored."""
        return self.stop_reason not in (None, StopReason.ERROR)

    @property
    def truncated(self) -> bool:
        """Whether a limit ended the rollout rather than the environment or an error."""
        return self.stop_reason in (
            StopReason.TRUNCATED,
            StopReason.MAX_TURNS,
            StopReason.MAX_TOKENS,
            StopReason.MAX_SEQ_LEN,
            StopReason.MAX_SECONDS,
            StopReason.MAX_COST,
        )

    @property
    def completion_tokens(self) -> int:
        """How many tokens the model sampled, over all turns."""
        return sum(turn.completion_tokens for turn in self.turns)

    @property
    def images(self) -> Iterator[Image]:
        """Every image of the messages, as often as it is in one."""
        for message in chain(self.messages, *(lineage.messages for lineage in self.lineages)):
            yield from message.images

    @property
    def held_images(self) -> Iterator[Image]:
        """Every image of the messages and of the token sequences, as often as it is in one."""
        yield from self.images
        for branch in self.branches:
            yield from branch.images

    def find_images(self, folder: Path) -> Trace:
        """Note the folder of the traces file that this was read from, for its images."""
        for image in self.held_images:
            image.folder = folder
        return self

    def copy(self) -> Trace:
        """Return a copy that shares nothing with the trace but the bytes of images."""
        copied = Trace.from_json(self.to_json())
        for own, image in zip(copied.held_images, self.held_images, strict=True):
            own.data, own.folder = image.data, image.folder
        return copied

    def to_json(self) -> bytes:
        """Return the trace as one line of JSON, without the newline. It names images, only."""
        return trace_adapter().dump_json(self)

    @classmethod
    def from_json(cls, line: bytes | str) -> Trace:
        """Read a trace from one line of JSON.

        Raises:
            ValueError: If the line is not a trace.
        """
        try:
            return trace_adapter().validate_json(line)
        except ConfigError as error:  # of a message
            raise ValueError(str(error)) from error


def first_problem(error: ValueError) -> str:
    """Return what a line lacks to be a trace: the first field that is wrong, and why."""
    lines = [line.strip() for line in str(error).splitlines() if "https://" not in line]
    return ": ".join(line.partition(" [type=")[0] for line in lines[1:3])[:200] or lines[0][:200]


@cache
def trace_adapter() -> TypeAdapter[Trace]:
    """Return what reads and writes traces, made on first use: that takes a while."""
    return TypeAdapter(Trace)
