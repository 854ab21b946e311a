"""Write a text backwards: one turn, no tools."""

from __future__ import annotations

import random
from collections.abc import Iterator
from difflib import SequenceMatcher

from vf.environments.environment import Environment, Split
from vf.rubrics.rubric import Rubric
from vf.traces.errors import ConfigError
from vf.traces.seeding import derive_seed
from vf.traces.task import Task
from vf.traces.trace import Trace

_CONSONANTS, _VOWELS = "bcdfghjklmnprstvwz", "aeiou"
_EVAL_SHARE = 5  # one task in five belongs to the eval split, for good
_DRAWS_PER_TASK = 100  # after so many, there are no more different tasks to draw


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
        ConfigError: An argument is out of range.
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
        if num_train < 1 or num_eval < 1:
            raise ConfigError("reverse-text: num_train and num_eval must be at least 1")
        self.min_letters = min_letters
        self.max_letters = max_letters
        self.sizes: dict[Split, int] = {"train": num_train, "eval": num_eval}
        self.seed = seed
        self.rubric = (
            Rubric(outcome=similarity, metrics=[exact])
            if partial_credit
            else Rubric(outcome=exact, metrics=[similarity])
        )

    def tasks(self, split: Split) -> Iterator[Task]:
        """Yield distinct texts; the split is decided by the text itself."""
        rng = random.Random(derive_seed(self.seed, "reverse-text", split))
        seen: set[str] = set()
        for _ in range(_DRAWS_PER_TASK * self.sizes[split]):
            if len(seen) == self.sizes[split]:
                return
            letters = rng.randint(self.min_letters, self.max_letters)
            text = "".join(
                rng.choice(_VOWELS if index % 2 else _CONSONANTS) for index in range(letters)
            )
            held_out = derive_seed("reverse-text", text) % _EVAL_SHARE == 0
            if text in seen or held_out != (split == "eval"):
                continue
            seen.add(text)
            yield Task(
                id=text,
                prompt=f"Write this backwards, and nothing else: {text}",
                answer=text[::-1],
            )
        if len(seen) < self.sizes[split]:
            raise ConfigError(
                f"reverse-text: found only {len(seen)} different {split} tasks of this size, not "
                f"{self.sizes[split]}; ask for fewer, or for larger ones"
            )
