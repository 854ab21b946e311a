"""Killed at random moments, many times, a run ends as one that was left alone."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.saving.comparing import comparable
from tests.trainer.saving.kill_run import STEPS, train
from vf.trainer.run.run_folder import RunFolder

pytestmark = pytest.mark.slow

KILLS = 6


@pytest.fixture(scope="module")
def server() -> Any:
    """Makes children that need not import everything again."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["vf.trainer.rl_trainer", "tests.trainer.saving.kill_run"])
    return context


def run_through(server: Any, folder: Path, args: dict[str, Any], kills: int, seed: int) -> int:
    """Run to the end, with so many kills on the way; returns how many there were."""
    rng, done = random.Random(seed), 0
    while True:
        child = server.Process(target=train, args=(folder, args))
        child.start()
        if done < kills:
            # From the moment that it does something: a kill while it loads the model tests little.
            before = _state(folder)
            while child.is_alive() and _state(folder) == before:
                time.sleep(0.01)
            child.join(rng.uniform(0.0, 0.4))
            if child.is_alive():
                child.kill()
                done += 1
        child.join(120.0)
        if child.exitcode == 0:
            return done
        assert child.exitcode == -9, f"it failed by itself: {child.exitcode}"


def _state(folder: Path) -> tuple[Any, ...]:
    files = [*folder.glob("traces/*.jsonl"), *folder.glob("metrics.jsonl")]
    return tuple(sorted((file.name, _size(file)) for file in files))


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return -1  # put away meanwhile


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
