"""The model protocol: something that answers a conversation."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol
from uuid import uuid4

from vf.runtime.errors import VfError
from vf.traces.images import Image
from vf.traces.messages import Message
from vf.traces.trace import Branch, FinishReason, Fork, StopReason

if TYPE_CHECKING:
    import asyncio


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample one answer.

    Attributes:
        max_tokens: Maximum tokens to sample in one turn.
        temperature: 0 is greedy.
        top_p: Nucleus mass, in (0, 1]; 1 keeps everything.
        top_k: Keep the k likeliest tokens; 0 keeps everything.
        min_p: Drop tokens less likely than this share of the likeliest; 0 keeps everything.
        repetition_penalty: Divides the logits of tokens already in the context; 1 is off.
        seed: Seed of the turn; None draws one.
        stop: Texts that end an answer. They are not part of the message, but of its tokens.
        structure: The structure of an answer, as in vLLM's ``structured_outputs``: ``{"json":
            SCHEMA}`` or ``{"json_object": True}``. Only vLLM enforces it; log-probabilities are as
            without it.
        fixed: Whether an agent that asks for another way to sample still gets this one.
        trained: Whether the answer is trained, for which a server tells what its filters left.
        images: The images of the prompt, each with the place of its first placeholder in it.
        experts_from: The first token of the prompt whose experts are to be returned, with those of
            all tokens after it; None for none.
    """

    max_tokens: int = 512
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    structure: dict[str, Any] | None = None
    fixed: bool = False
    trained: bool = False
    experts_from: int | None = None
    images: tuple[Image, ...] = field(default=(), repr=False)

    @property
    def filtered(self) -> bool:
        """Whether some tokens may be left out before one is sampled."""
        return bool(filters_used(self))

    def with_(self, **changes: Any) -> Sampling:
        """Return a copy with some fields changed."""
        return replace(self, **changes)


# Who tells the model of its tools: its chat template, or text in the system prompt.
ToolStyle = Literal["template", "text"]

# The settings that leave tokens out of what is sampled from, and what leaves none out.
FILTERS = {"top_p": 1.0, "top_k": 0, "min_p": 0.0}
# The same, and what else changes the distribution that is sampled from.
NEUTRAL = {**FILTERS, "repetition_penalty": 1.0}


def filters_used(*settings: Any) -> list[str]:
    """Return the names of the filters that any of some settings uses, which have their fields."""
    return [
        name
        for name, neutral in FILTERS.items()
        if any(getattr(setting, name) != neutral for setting in settings)
    ]


@dataclass(slots=True)
class Conversation:
    """The conversation of one rollout so far, as messages and as tokens.

    A model reads ``messages`` and ``tools`` and extends ``branches`` (token models) in
    :meth:`Model.respond`. The runner appends the answers and the environment's messages.

    Attributes:
        messages: Everything said, in order.
        tools: The available tools, in OpenAI's format.
        branches: Token sequences; empty for models that only speak text.
        forks: Where a new branch had to start, and why.
        encoded: How many of ``messages`` the last branch already holds.
        fork: Why the next prompt begins a new branch, where it does by intent: earlier messages
            were replaced, say. The model renders everything again. None otherwise.
        options: What else an agent asks of the answer, by OpenAI's names, such as
            ``response_format``. Models that cannot do it leave it out.
        key: What tells it from other conversations, so that one server answers all of it.
        rendering: Held while the next prompt is rendered, by one of those conversations at a time
            that share it; None if it need not wait for others.
    """

    messages: list[Message] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)
    forks: list[Fork] = field(default_factory=list)
    encoded: int = 0
    fork: Fork | None = None
    turn: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    key: str = field(default_factory=lambda: uuid4().hex, compare=False)
    rendering: asyncio.Lock | None = field(default=None, compare=False)


@dataclass(slots=True)
class Reply:
    """One answer: the message, why it ended, and what it cost in tokens.

    ``stop`` is which of :attr:`Sampling.stop` ended it.
    """

    message: Message
    finish_reason: FinishReason = "stop"
    prompt_tokens: int = 0
    completion_tokens: int = 0
    stop: str | None = None


class LimitReached(VfError):
    """A limit leaves no room for another answer; the rollout is scored, and marked truncated.

    Attributes:
        reason: The limit.
    """

    def __init__(self, reason: StopReason) -> None:
        super().__init__(reason.value)
        self.reason = reason


class ContextFull(LimitReached):
    """The conversation leaves no room for another token; the rollout ends as truncated.

    Attributes:
        tokens: How many it has.
        limit: How many the context holds.
    """

    def __init__(self, tokens: int = 0, limit: int = 0) -> None:
        super().__init__(StopReason.MAX_SEQ_LEN)
        self.tokens = tokens
        self.limit = limit


class Model(Protocol):
    """Anything that can answer a conversation.

    It may have an attribute ``sampling``: how it samples where the caller does not say;
    ``max_seq_len``: how many tokens its context holds; ``prompt_tokens(conversation)``: how many
    the next prompt has; and ``one_conversation``: that it cannot answer nested conversations.
    """

    async def respond(self, conversation: Conversation, sampling: Sampling) -> Reply:
        """Answer the conversation.

        Must not append to ``conversation.messages``; the runner does.

        Raises:
            ModelError: If the model gives no answer.
            LimitReached: If there is no room left to answer in, or another limit is reached.
        """
        ...


def own_sampling(model: Model) -> Sampling:
    """Return how a model samples where the caller does not say."""
    sampling: Sampling = getattr(model, "sampling", Sampling())
    return sampling


def context_size(model: Model) -> int | None:
    """Return how many tokens a model's context holds; None where it does not say."""
    size: int | None = getattr(model, "max_seq_len", None)
    return size
