"""Generated tasks: distinct, reproducible, and never in both splits."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from vf.environments.environment import Split
from vf.runtime.errors import ConfigError
from vf.runtime.seeding import derive_seed
from vf.traces.task import Task

_EVAL_SHARE = 5  # one task in five is always held out for the eval split
_DRAWS_PER_TASK = 100  # after so many draws, no different tasks are left


def split_sizes(environment: str, num_train: int, num_eval: int) -> dict[Split, int]:
    """Return how many tasks each split has.

    Raises:
        ConfigError: If a split would be empty; names the environment.
    """
    if num_train < 1 or num_eval < 1:
        raise ConfigError(f"{environment}: num_train and num_eval must be at least 1")
    return {"train": num_train, "eval": num_eval}


def distinct_tasks(
    environment: str,
    draw: Callable[[random.Random], Task],
    *,
    split: Split,
    count: int,
    seed: int,
    by_id: bool = True,
) -> Iterator[Task]:
    """Yield ``count`` different tasks of a split.

    No task is in both splits, whatever their sizes and seeds.

    Args:
        environment: Its name, for the seed and error messages.
        draw: Draws a random task.
        split: The split.
        count: Number of tasks.
        seed: Seed of the tasks.
        by_id: Whether a task's id decides its split; False if ``draw`` keeps the splits apart.

    Raises:
        ConfigError: If there are too few different tasks.
    """
    rng = random.Random(derive_seed(seed, environment, split))
    seen: set[str] = set()
    for _ in range(_DRAWS_PER_TASK * count):
        if len(seen) == count:
            return
        task = draw(rng)
        held_out = derive_seed(environment, task.id) % _EVAL_SHARE == 0
        if task.id not in seen and (not by_id or held_out == (split == "eval")):
            seen.add(task.id)
            yield task
    if len(seen) < count:
        raise ConfigError(
            f"{environment}: found only {len(seen)} different {split} tasks of this size, not "
            f"{count}; ask for fewer, or for larger ones"
        )
