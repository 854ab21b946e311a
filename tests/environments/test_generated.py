"""Tasks that bundled environments draw: the same every time, distinct, and in one split."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

import vf
from vf.environments.environment import Split

SIZES: dict[str, Any] = {"num_train": 60, "num_eval": 30}
NAMES = ["calculator", "reverse-text", "math-python", "repo-fix", "support-desk", "read-picture"]
PLAYED = ["guess-number", "geo-qa", "kuhn-poker", "tic-tac-toe"]  # whose tasks may repeat


@pytest.mark.parametrize("name", NAMES)
def test_tasks_are_the_same_every_time_and_none_is_in_both_splits(name: str) -> None:
    splits: tuple[Split, ...] = ("train", "eval")
    drawn = {
        split: [list(vf.make(name, seed=seed, **SIZES).tasks(split)) for seed in (0, 0, 1)]
        for split in splits
    }
    for split, (first, again, other) in drawn.items():
        assert first == again
        ids = {task.id for task in first}
        assert len(ids) == len(first) == SIZES[f"num_{split}"]
        assert ids != {task.id for task in other}
    train, held_out = ({task.id for tasks in seeds for task in tasks} for seeds in drawn.values())
    assert not train & held_out


def test_more_tasks_than_there_are_is_a_config_error_and_a_few_are_not_drawn_with_all() -> None:
    many = vf.make("calculator", max_operations=1, max_operand=10, num_train=10**9)
    assert len(list(islice(many.tasks("train"), 3))) == 3
    few = vf.make("calculator", max_operations=1, max_operand=10, num_train=400)
    with pytest.raises(vf.ConfigError, match=r"found only .* different train tasks"):
        list(few.tasks("train"))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", [*NAMES, *PLAYED])
def test_a_split_has_at_least_one_task(name: str, size: str) -> None:
    with pytest.raises(vf.ConfigError, match=f"{name}: .*num_train and num_eval must be at least"):
        vf.make(name, **{size: 0})
