"""Scripted agents that speak text and tool calls, as models do."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from vf.evaluation.validation.arguments import random_arguments
from vf.inference.model import Conversation, Reply, Sampling
from vf.inference.models.scripted_model import Line, as_reply
from vf.traces.messages import Message
from vf.traces.task import Task

FORMS = ("{}", "Answer: {}", "\\boxed{{{}}}", '{{"answer": "{}"}}', "<answer>{}</answer>")
_MOST_OPTIONS = 20
_CHARACTERS_PER_TOKEN = 4  # roughly, for penalties on length
_WORDS = ("the", "of", "yes", "no", "true", "false", "A", "B", "C", "D", "Paris", "right", "done")


@dataclass(frozen=True, slots=True)
class Notes:
    """What an agent knows of an environment without having solved anything.

    Attributes:
        answers: Answers of tasks as text, by the task's id.
        form: How an answer has to be written, with ``{}`` for it.
        max_turns: Most turns of an episode.
    """

    answers: Mapping[str, str]
    form: str = FORMS[0]
    max_turns: int = 1


@dataclass(slots=True)
class Situation:
    """What an agent sees when it is to speak."""

    task: Task
    messages: list[Message]
    tools: list[dict[str, Any]]
    turn: int
    rng: random.Random
    notes: Notes

    @property
    def last_turn(self) -> bool:
        """Whether the episode ends with what is said now."""
        return self.turn + 1 >= self.notes.max_turns

    @property
    def heard(self) -> str:
        """The last thing that the environment said."""
        return self.messages[-1].content if self.messages else ""

    def answer(self, text: object) -> str:
        """Write an answer in the environment's form."""
        return self.notes.form.format(text)

    @property
    def others(self) -> Counter[str]:
        """The answers of other tasks; of this one an agent that has solved nothing knows nothing.

        It may be the same as another's, and then a guess is as good.
        """
        answers = self.notes.answers.items()
        return Counter(answer for id, answer in answers if id != self.task.id)

    @property
    def options(self) -> list[str]:
        """The first answers of other tasks, each once; something else if there are none."""
        return list(self.others)[:_MOST_OPTIONS] or ["42"]

    def guess(self) -> str:
        """Write a random other task's answer."""
        return self.answer(self.rng.choice(self.options))

    def guess_most_frequent(self) -> str:
        """Write the most frequent answer of other tasks."""
        return self.answer(self.others.most_common(1)[0][0] if self.others else "yes")

    def call(self, fill: Mapping[str, str] | None = None) -> Line | None:
        """Call a random tool with arguments that fit its schema; None if there is no tool."""
        if not self.tools:
            return None
        function = self.rng.choice(self.tools)["function"]
        return {function["name"]: random_arguments(function["parameters"], self.rng, fill)}


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent, by what it says.

    Attributes:
        name: In the report.
        about: What it does, in a few words.
        speak: Says the next line.
        limit: Most that its mean reward may be, of those who know nothing.
    """

    name: str
    about: str
    speak: Callable[[Situation], Line]
    limit: float = 0.5


@dataclass(slots=True)
class AgentModel:
    """An agent as a :class:`~vf.inference.model.Model`, for one task."""

    agent: Agent
    task: Task
    notes: Notes

    async def respond(self, conversation: Conversation, sampling: Sampling) -> Reply:
        """Return what the agent says; chance comes from the turn's seed."""
        situation = Situation(
            task=self.task,
            messages=list(conversation.messages),
            tools=conversation.tools,
            turn=conversation.turn,
            rng=random.Random(sampling.seed),
            notes=self.notes,
        )
        line = as_reply(self.agent.speak(situation), conversation.turn)
        room = sampling.max_tokens * _CHARACTERS_PER_TOKEN
        cut = len(line.content) > room
        message = replace(line, content=line.content[:room])
        written = len(message.content) + sum(len(call.arguments) for call in message.tool_calls)
        tokens = min(sampling.max_tokens, written // _CHARACTERS_PER_TOKEN + 1)
        return Reply(message, "length" if cut else "stop", completion_tokens=tokens)


def answer_text(answer: object) -> str | None:
    """Return a task's answer as text, the first of several accepted ones; None if it has none."""
    if isinstance(answer, list | tuple) and answer and all(isinstance(a, str) for a in answer):
        answer = answer[0]
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        return None
    return str(answer).strip() or None


def _at_random(situation: Situation) -> Line:
    rng = situation.rng
    call = situation.call() if rng.random() < 0.5 and not situation.last_turn else None
    if call is not None:
        return call
    word = rng.choice([*_WORDS, str(rng.randint(0, 100))])
    return situation.answer(word) if rng.random() < 0.5 else word


def _copies_the_end(situation: Situation) -> Line:
    words = re.findall(r"\w+", situation.heard)
    return situation.answer(words[-1] if words else "")


IGNORANT = (
    Agent("no-op", "says nothing", lambda situation: "", limit=0.25),
    Agent("random", "random words and tool calls", _at_random),
    Agent("copy", "repeats its prompt", lambda situation: situation.heard, limit=0.25),
    Agent("copy-end", "answers with the last word of its prompt", _copies_the_end),
    Agent("guess", "answers as another task wants", Situation.guess),
    Agent("frequent", "always the most frequent answer", Situation.guess_most_frequent),
)
