"""The tests' verdict: the reward files that they write, or pytest's output."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

KEY = "reward"
_SUMMARY = re.compile(r"^=+ short test summary info =+$", re.MULTILINE)
_LINE = re.compile(r"^(PASSED|FAILED|ERROR)\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a task, or of one of its steps.

    Attributes:
        rewards: Numbers that the tests wrote, by key.
        problem: Reason why they wrote nothing that can be used; empty if they did.
    """

    rewards: Mapping[str, float] = field(default_factory=dict)
    problem: str = ""

    def reward(self, key: str = KEY) -> float:
        """Return the reward, in [0, 1]: what lies beyond counts as its end.

        Of one key that is called otherwise, its value.
        """
        if key not in self.rewards and len(self.rewards) == 1:
            (key,) = self.rewards
        return min(1.0, max(0.0, self.rewards.get(key, 0.0)))

    def reaches(self, least: Mapping[str, float]) -> bool:
        """Return whether no reward is below what it must be at least; a missing one is."""
        return all(self.rewards.get(key, -math.inf) >= value for key, value in least.items())


def read_rewards(text: bytes | None, table: bytes | None, key: str = KEY) -> Verdict:
    """Read ``reward.json``, or else ``reward.txt``.

    Args:
        text: Content of ``reward.txt``; None if there is no such file.
        table: Content of ``reward.json``; None if there is no such file.
        key: Key of the reward where there are several.
    """
    if table is not None:
        return _read_table(table, key)
    if text is None:
        return Verdict(problem="the tests wrote neither reward.txt nor reward.json")
    try:
        value = float(text.decode())
    except ValueError:
        return Verdict(problem=f"reward.txt holds no number: {_shown(text)}")
    if not math.isfinite(value):
        return Verdict(problem=f"reward.txt holds no number: {_shown(text)}")
    return Verdict({KEY: value})


def _read_table(table: bytes, key: str) -> Verdict:
    try:
        rewards: Any = json.loads(table)
    except (ValueError, RecursionError):
        return Verdict(problem=f"reward.json is not JSON: {_shown(table)}")
    if not isinstance(rewards, dict) or not rewards:
        return Verdict(problem=f"reward.json holds no table of rewards: {_shown(table)}")
    for name, value in rewards.items():
        if not isinstance(value, int | float) or not _finite(value):
            return Verdict(problem=f"reward.json: {name[:100]!r} is not a number")
    if key not in rewards and len(rewards) > 1:
        names = ", ".join(sorted(rewards))[:200]
        return Verdict(
            problem=f"reward.json has no key {key!r}, but {names}; choose one by "
            "env.args.reward_key"
        )
    return Verdict({name: float(value) for name, value in rewards.items()})


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float can hold
        return False


def _shown(data: bytes) -> str:
    return repr(data[:100].decode("utf-8", "replace"))


def read_pytest(output: str) -> Verdict:
    """Read what ``pytest -rA`` prints: 1 if tests passed and none did not."""
    *_, summary = [None, *_SUMMARY.finditer(output)]
    if summary is None:
        return Verdict(problem="the tests printed no summary of pytest's; they run it with -rA")
    results = _LINE.findall(output, summary.end())
    if not results:
        return Verdict(problem="pytest's summary names no test; run it with -rA")
    return Verdict({KEY: float(set(results) == {"PASSED"})})


def combine(
    verdicts: Sequence[Verdict], parts: int, strategy: Literal["mean", "final"], key: str = KEY
) -> float:
    """Return the reward of a task with several steps.

    A step that was not begun, since one before it fell short, is worth 0: giving up early must
    not pay.

    Args:
        verdicts: Verdicts of the steps that were verified, in order.
        parts: Number of steps.
        strategy: ``mean`` of all steps, or the ``final`` one's.
        key: Key of the reward where there are several.
    """
    rewards = [verdict.reward(key) for verdict in verdicts]
    if strategy == "final":
        return rewards[-1] if len(rewards) == parts else 0.0
    return sum(rewards) / parts
