"""Write a text backwards: one turn, no tools."""

from __future__ import annotations

import random
from collections.abc import Iterator
from difflib import SequenceMatcher

from vf.environments.environment import Environment, Split
from vf.environments.generated import distinct_tasks, split_sizes
from vf.inference.models.scripted_model import Script
from vf.rubrics.rubric import Rubric
from vf.runtime.errors import ConfigError
from vf.traces.task import Task
from vf.traces.trace import Trace

_CONSONANTS, _VOWELS = "bcdfghjklmnprstvwz", "aeiou"


def exact(trace: Trace) -> float:
    """1 if the reply is the text backwards, surrounding blanks aside; 0 otherwise."""
    return float(trace.reply.strip() == trace.task.answer)


def similarity(trace: Trace) -> float:
    """Gestalt similarity of the reply and the answer, in [0, 1] (difflib's ratio)."""
    matcher = SequenceMatcher(None, trace.reply.strip(), str(trace.task.answer), autojunk=False)
    return matcher.ratio()


class ReverseText(Environment):
    """Write pseudo-words backwards, letter by letter.

    Args:
        min_letters: Letters in the shortest text.
        max_letters: Letters in the longest text.
        partial_credit: Score by similarity instead of exactness.
        num_train: Tasks in the train split.
        num_eval: Tasks in the eval split; no text is in both splits.
        seed: Seed of the tasks.

    Raises:
        ConfigError: If an argument is out of range.
    """

    max_turns = 1

    def __init__(
        self,
        min_letters: int = 4,
        max_letters: int = 10,
        partial_credit: bool = False,
        num_train: int = 2000,
        num_eval: int = 200,
        seed: int = 0,
    ) -> None:
        if not 4 <= min_letters <= max_letters:
            raise ConfigError("reverse-text: needs 4 <= min_letters <= max_letters")
        self.min_letters = min_letters
        self.max_letters = max_letters
        self.sizes = split_sizes("reverse-text", num_train, num_eval)
        self.seed = seed
        self.rubric = (
            Rubric(outcome=similarity, metrics=[exact])
            if partial_credit
            else Rubric(outcome=exact, metrics=[similarity])
        )

    def tasks(self, split: Split) -> Iterator[Task]:
        """Yield distinct texts; which split a text is in never changes."""
        return distinct_tasks(
            "reverse-text", self._draw, split=split, count=self.sizes[split], seed=self.seed
        )

    def oracle(self, task: Task) -> Script:
        """Say the answer."""
        return [str(task.answer)]

    def _draw(self, rng: random.Random) -> Task:
        letters = rng.randint(self.min_letters, self.max_letters)
        text = "".join(
            rng.choice(_VOWELS if index % 2 else _CONSONANTS) for index in range(letters)
        )
        prompt = f"Write this backwards, and nothing else: {text}"
        return Task(id=text, prompt=prompt, answer=text[::-1])
