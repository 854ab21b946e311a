"""Find a hidden number by asking; the environment says higher or lower."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from itertools import pairwise

from vf.environments.environment import Environment, Split, Step
from vf.environments.generated import split_sizes
from vf.inference.models.scripted_model import Script
from vf.rubrics.rubric import Rubric
from vf.runtime.errors import ConfigError
from vf.runtime.seeding import derive_seed
from vf.traces.messages import Message
from vf.traces.task import Task
from vf.traces.trace import StopReason, Trace

_NUMBER = re.compile(r"-?\d+")


def guessed(trace: Trace) -> float:
    """1 if the number was found within the turns, 0 otherwise."""
    return float(trace.stop_reason is StopReason.TERMINATED)


def guesses(trace: Trace) -> float:
    """How many guesses were made."""
    return float(len(trace.turns))


class GuessNumber(Environment):
    """Guess a whole number from 1 to ``high``; a reply may hold exactly one number.

    With the default limit, bisection always succeeds and guessing at random usually fails.

    Args:
        high: The largest possible number.
        max_guesses: Turns; by default as many as bisection needs.
        num_train: Episodes in the train split.
        num_eval: Episodes in the eval split.
        seed: Seed of the tasks.

    Raises:
        ConfigError: If an argument is out of range.
    """

    def __init__(
        self,
        high: int = 100,
        max_guesses: int | None = None,
        num_train: int = 2000,
        num_eval: int = 200,
        seed: int = 0,
    ) -> None:
        if high < 2:
            raise ConfigError(f"guess-number: high must be at least 2, got {high}")
        if max_guesses is not None and max_guesses < 1:
            raise ConfigError(f"guess-number: max_guesses must be at least 1, got {max_guesses}")
        self.high = high
        self.max_turns = max_guesses or high.bit_length()
        self.sizes = split_sizes("guess-number", num_train, num_eval)
        self.seed = seed
        self.rubric = Rubric(outcome=guessed, metrics=[guesses])

    def tasks(self, split: Split) -> Iterator[Task]:
        """Yield episodes, each with its own hidden number."""
        rng = random.Random(derive_seed(self.seed, "guess-number", split))
        for index in range(self.sizes[split]):
            yield Task(
                id=f"{split}-{index}",
                prompt=(
                    f"I think of a whole number from 1 to {self.high}. You have "
                    f"{self.max_turns} guesses. Reply with one number at a time."
                ),
                answer=rng.randint(1, self.high),
            )

    def oracle(self, task: Task) -> Script:
        """Bisect, without looking at the answer: always done within the default turns."""

        def guess(messages: list[Message]) -> str:
            low, high = 1, self.high
            texts = [message.content for message in messages]
            for number, hint in pairwise(texts[1:]):
                if hint == "Higher.":
                    low = int(number) + 1
                elif hint == "Lower.":
                    high = int(number) - 1
            return str((low + high) // 2)

        return guess

    def reset(self, task: Task) -> list[Message]:
        """Hide the task's number."""
        self.secret = int(task.answer)
        return self.first_messages(task)

    def step(self, reply: Message) -> Step:
        """Say higher or lower, or end when the number is found."""
        numbers = _NUMBER.findall(reply.content)
        if len(numbers) != 1 or len(numbers[0]) > 12:
            return Step("Reply with exactly one number.")
        guess = int(numbers[0])
        if guess == self.secret:
            return Step("Correct!", reward=1.0, terminated=True)
        return Step("Higher." if guess < self.secret else "Lower.")
