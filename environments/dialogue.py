"""An episode's conversations with the model: their answers, and their record in the trace."""

from __future__ import annotations

from dataclasses import dataclass, field

from vf.environments.episode import Episode
from vf.inference.model import (
    Conversation,
    LimitReached,
    Model,
    Reply,
    Sampling,
    context_size,
)
from vf.runtime.errors import ConfigError, InfrastructureError, ModelError
from vf.runtime.seeding import derive_seed
from vf.traces.messages import Message
from vf.traces.trace import Fork, Lineage, StopReason, Turn

# Of a model that does not count its tokens: rather too many of them than too few.
_CHARACTERS_PER_TOKEN = 3


@dataclass(slots=True)
class Dialogue:
    """One conversation with the model. Where it cannot grow, it continues in another lineage.

    Attributes:
        conversation: What the model answers.
        lineage: Its record; the last one where it continued in another.
        seed: What its answers' seeds derive from, beside the episode's.
        first: The messages that it began with.
        answers: How many it has had, in all lineages.
        last: The last answer in this lineage.
    """

    conversation: Conversation
    lineage: Lineage
    seed: tuple[str | int, ...] = ("turn",)
    first: list[Message] = field(default_factory=list)
    answers: int = 0
    last: Turn | None = None

    def restart(self, messages: list[Message], fork: Fork, parent: int | None) -> None:
        """Continue with other messages, which begin a new branch.

        Args:
            messages: The messages that the model sees from here on.
            fork: Why. Its turn is that of the next answer.
            parent: The place of the lineage whose beginning the messages repeat, if they do.
        """
        conversation = self.conversation
        conversation.messages, conversation.encoded, conversation.fork = messages, 0, fork
        self.lineage = Lineage(messages, len(messages), conversation.tools, parent=parent)
        self.last = None


@dataclass(slots=True)
class Dialogues:
    """All conversations of one episode.

    Attributes:
        episode: What it is played with.
        lineages: Of all of them, in the order in which they began to be answered.
        main: The environment's own, which the trace's messages are of.
    """

    episode: Episode
    main: Dialogue = field(init=False)
    lineages: list[Lineage] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.main = Dialogue(Conversation(fork=self.episode.fork), Lineage())
        trace, lineage = self.episode.trace, self.main.lineage
        lineage.messages = trace.messages = self.main.conversation.messages

    def prompt_tokens(self, dialogue: Dialogue) -> int:
        """Return how many tokens a conversation has; an estimate where the model does not say.

        Raises:
            LimitReached: If it is many times longer than the context.
            InfrastructureError: If it cannot be rendered.
        """
        conversation, last = dialogue.conversation, dialogue.last
        count = getattr(self.episode.model, "prompt_tokens", None)
        if count is not None:
            return int(count(conversation))
        counted = 0 if last is None else last.prompt_tokens + last.completion_tokens
        new = conversation.messages[dialogue.lineage.answers[-1] + 1 if counted else 0 :]
        characters = sum(
            len(message.content) + sum(len(call.arguments) for call in message.tool_calls)
            for message in new
        )
        seen = sum(image.tokens for message in new for image in message.images)
        return counted + characters // _CHARACTERS_PER_TOKEN + seen

    @property
    def context_size(self) -> int | None:
        """How many tokens the model's context holds; None where it does not say."""
        return context_size(self.episode.model)

    async def answer(self, dialogue: Dialogue, max_tokens: int | None = None) -> Reply:
        """Have the model answer a conversation, and record it.

        Args:
            dialogue: The dialogue; its last message is not the model's.
            max_tokens: Tokens of this answer at most, where fewer than the sampling's.

        Raises:
            InfrastructureError: If the model failed.
            LimitReached: If there is no room left to answer in.
        """
        episode, conversation = self.episode, dialogue.conversation
        limit = episode.environment.max_tokens
        budget = min(episode.sampling.max_tokens, max_tokens or episode.sampling.max_tokens)
        if limit is not None:
            budget = min(budget, limit - episode.trace.completion_tokens)
        if budget < 1:
            raise LimitReached(StopReason.MAX_TOKENS)
        seed = derive_seed(episode.seed, *dialogue.seed, dialogue.answers)
        conversation.turn = episode.first_turn + len(episode.trace.turns)
        branches, forks = len(conversation.branches), len(conversation.forks)
        tokens = len(conversation.branches[-1]) if branches else 0
        fork = conversation.fork
        with episode.phase("model") as timer:
            sampling = episode.sampling.with_(max_tokens=budget, seed=seed)
            reply = await respond(episode.model, conversation, sampling)
        self._record(dialogue, reply, timer(), (branches, tokens, forks), fork)
        return reply

    def _record(
        self,
        dialogue: Dialogue,
        reply: Reply,
        seconds: float,
        before: tuple[int, int, int],
        fork: Fork | None,
    ) -> None:
        """Write an answer into the trace."""
        trace, conversation, lineage = self.episode.trace, dialogue.conversation, dialogue.lineage
        number, turn = conversation.turn, len(trace.turns)
        branches, tokens, forks = before
        if number != turn and conversation.branches:  # it is played within another episode
            branch = conversation.branches[-1]
            first = tokens if len(conversation.branches) == branches else 0
            branch.turn_index[first:] = [turn] * (len(branch) - first)
        if not lineage.answers:
            self._begin(lineage)
        for branch in conversation.branches[branches:]:
            lineage.branches.append(len(trace.branches))
            trace.branches.append(branch)
        new = conversation.forks[forks:]
        if fork is not None and not new:  # a model without tokens does not say so itself
            new = [fork]
        trace.forks += [Fork(turn, fork.reason, fork.kind) for fork in new]
        conversation.fork = None
        lineage.answers.append(len(conversation.messages))
        lineage.turns.append(turn)
        dialogue.last = Turn(
            reply.prompt_tokens, reply.completion_tokens, reply.finish_reason, seconds
        )
        trace.turns.append(dialogue.last)
        conversation.messages.append(reply.message)
        dialogue.answers += 1
        self.episode.activity.turn = len(trace.turns)
        if dialogue is self.main:
            trace.messages, trace.tools = lineage.messages, lineage.tools
            trace.prompt_messages = lineage.prompt_messages

    def _begin(self, lineage: Lineage) -> None:
        self.lineages.append(lineage)
        if len(self.lineages) > 1:
            self.episode.trace.lineages = self.lineages


async def respond(model: Model, conversation: Conversation, sampling: Sampling) -> Reply:
    """Have a model answer, and name it in whatever it raises.

    Raises:
        ModelError: If it raised something of its own.
    """
    try:
        return await model.respond(conversation, sampling)
    except (InfrastructureError, ConfigError, LimitReached):
        raise
    except Exception as error:
        raise ModelError(f"the model raised {type(error).__name__}: {error}") from error
