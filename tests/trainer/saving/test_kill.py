"""Killed at random moments, many times, a run ends as one that was left alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.saving.comparing import comparable, differences
from tests.trainer.saving.kill_run import DETERMINISTIC, STEPS, children, run_through
from vf.trainer.run.run_folder import RunFolder

pytestmark = pytest.mark.slow

KILLS = 6


@pytest.fixture(scope="module")
def server() -> Any:
    """Makes the children."""
    return children()


def ledger(folder: RunFolder) -> dict[int, list[tuple[Any, ...]]]:
    """Return, by step, every rollout that was trained on: its draw, task, number and seed."""
    return {
        step: sorted(
            (origin.group, trace.task.id, origin.rollout, trace.seed)
            for trace in folder.step_traces(step)
            if (origin := trace.origin) is not None
        )
        for step in range(1, STEPS + 1)
    }


@pytest.mark.gate
def test_on_policy_the_ledger_and_the_metrics_are_those_of_an_unbroken_run(
    server: Any, tmp_path: Path
) -> None:
    # One rollout at a time: which requests share a forward pass is a matter of time, and decides
    # the last digits of their logits, now and then a token.
    args = {"max_steps_off_policy": 0, "max_concurrent": 1}
    unbroken, broken = RunFolder(tmp_path / "unbroken"), RunFolder(tmp_path / "broken")
    assert run_through(server, unbroken.path, args, 0, 0) == 0
    assert run_through(server, broken.path, args, KILLS, 1) >= 2
    assert ledger(broken) == ledger(unbroken)
    expected, got = comparable(unbroken), comparable(broken)
    assert [line["step"] for line in got] == list(range(STEPS + 1))
    assert got == expected, "to the last bit"


def test_with_deterministic_so_are_its_tokens_and_weights_with_many_rollouts_at_once(
    server: Any, tmp_path: Path
) -> None:
    unbroken, broken = RunFolder(tmp_path / "unbroken"), RunFolder(tmp_path / "broken")
    assert run_through(server, unbroken.path, DETERMINISTIC, 0, 0) == 0
    assert run_through(server, broken.path, DETERMINISTIC, KILLS, 3) >= 2
    assert differences(unbroken, broken) == []
    assert all(line.get("kl_sample_train_v2", 0.0) == 0.0 for line in unbroken.read_metrics())


def test_off_policy_no_draw_is_lost_or_trained_on_twice(server: Any, tmp_path: Path) -> None:
    args = {"max_steps_off_policy": 2, "max_refill": 0.0}
    folder = RunFolder(tmp_path / "broken")
    assert run_through(server, folder.path, args, KILLS, 2) >= 2
    drawn = Counter(entry[0] for entries in ledger(folder).values() for entry in entries)
    assert drawn == dict.fromkeys(range(2 * STEPS), 4), "four rollouts of every draw, once"
    lines = folder.read_metrics()
    assert [line["step"] for line in lines] == list(range(STEPS + 1))
    assert max(line.get("staleness/max", 0.0) for line in lines) <= 2
    for step in range(1, STEPS + 1):
        rewards = [t.reward for t in folder.step_traces(step) if t.reward is not None]
        assert sum(rewards) / len(rewards) == pytest.approx(lines[step]["reward/mean"])
    assert list(folder.traces.glob("superseded-*/*.jsonl")), "what was done over is kept apart"
