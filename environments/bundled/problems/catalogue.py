"""All problems, and which are held out."""

from __future__ import annotations

from vf.environments.bundled.problems import (
    choices,
    graphs,
    grids,
    lists,
    machines,
    numbers,
    text,
)
from vf.environments.bundled.problems.problem import Problem
from vf.environments.environment import Split

_SHELVES = [text, numbers, lists, grids, graphs, choices, machines]
_EVAL_SHARE = 4  # one problem in four of each kind is held out, for good


def problems(split: Split) -> list[Problem]:
    """Return the problems of a split, always in the same order; no problem is in both."""
    held_out = split == "eval"
    return [
        problem
        for module in _SHELVES
        for index, problem in enumerate(module.shelf.problems)
        if (index % _EVAL_SHARE == _EVAL_SHARE - 1) == held_out
    ]
