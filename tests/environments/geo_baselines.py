"""Who geo-qa is measured against, beside its oracle: who never looks, and who looks at random."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from typing import Any

from vf.environments.environment import Environment
from vf.inference.model import Conversation, Reply, Sampling
from vf.tools.search.markup import result_ids
from vf.traces.messages import Message, ToolCall
from vf.traces.task import Task


class NoTools:
    """Answers at once, with the most frequent right answer to this kind of question in training.

    The best that can be had without looking anything up or knowing anything.

    Args:
        environment: A geo-qa environment.
    """

    def __init__(self, environment: Environment) -> None:
        counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for task in environment.tasks("train"):
            counts[_kind(task)][task.answer[0]] += 1
        best = {kind: counter.most_common(1)[0][0] for kind, counter in counts.items()}
        self._answers = {
            str(task.prompt): best.get(_kind(task), "unknown")
            for split in ("train", "eval")
            for task in environment.tasks(split)
        }

    async def respond(self, conversation: Conversation, sampling: Sampling) -> Reply:
        """Answer."""
        return _say(f"Answer: {self._answers.get(_question(conversation), 'unknown')}")


class RandomAgent:
    """Searches for random words of the question, opens any result, answers what was right once.

    Args:
        environment: A geo-qa environment.
    """

    def __init__(self, environment: Environment) -> None:
        self._answers = [task.answer[0] for task in environment.tasks("train")]

    async def respond(self, conversation: Conversation, sampling: Sampling) -> Reply:
        """Search, open, answer; ``sampling.seed`` decides for what."""
        rng = random.Random(sampling.seed)
        if conversation.turn == 0:
            words = rng.sample(_question(conversation).split(), 2)
            return _call("search", conversation, query=" ".join(words))
        found = result_ids(conversation.messages[-1].content)
        if conversation.turn == 1 and found:
            return _call("open", conversation, doc_id=rng.choice(found))
        return _say(f"Answer: {rng.choice(self._answers)}")


def _kind(task: Task) -> str:
    return str(task.info["query"][0])


def _question(conversation: Conversation) -> str:
    return next((m.content for m in conversation.messages if m.role == "user"), "")


def _say(text: str) -> Reply:
    return Reply(Message("assistant", text))


def _call(name: str, conversation: Conversation, **arguments: Any) -> Reply:
    call = ToolCall(f"call_{conversation.turn}", name, json.dumps(arguments))
    return Reply(Message("assistant", tool_calls=[call]))
