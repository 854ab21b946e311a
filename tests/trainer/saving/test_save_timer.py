"""Checkpoints that are due by the clock: when, what they cost, and which of them stay."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.saving.comparing import comparable
from vf.trainer.rl_trainer import RLTrainer
from vf.trainer.saving.checkpoint_files import remove_old
from vf.trainer.saving.save_timer import SHARE, SaveTimer


class Clock:
    """A clock that stands until it is set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def saves(minutes: float, *, step: float, took: float, hours: float) -> list[float]:
    """Return the seconds at which a run saves whose steps and checkpoints take so long."""
    clock, times = Clock(), list[float]()
    timer = SaveTimer(minutes, clock)
    while clock.now < hours * 3600:
        clock.now += step
        if timer.due:
            times.append(clock.now)
            timer.begin()
            clock.now += took
            timer.end()
    return times


def test_the_first_step_is_saved_and_a_kill_costs_a_tenth_and_then_some_minutes() -> None:
    times = saves(5, step=2, took=0.01, hours=3)
    assert times[0] == 2
    for earlier, later in itertools.pairwise(times):
        assert later - earlier <= max(4.1, min(0.12 * later, 302.1)) + 2
    assert 20 < len(times) < 120


@pytest.mark.parametrize(("step", "took"), [(0.05, 0.2), (2, 1), (60, 45)])
def test_they_take_a_small_share_of_the_time(step: float, took: float) -> None:
    times = saves(5, step=step, took=took, hours=10)
    assert len(times) > 3
    assert (len(times) - 1) * took <= SHARE * 10 * 3600


def test_it_can_be_turned_off() -> None:
    assert saves(0, step=1, took=0.1, hours=1) == []


def test_any_checkpoint_puts_the_next_off_and_none_is_due_while_one_is_written() -> None:
    clock = Clock()
    timer = SaveTimer(1, clock)
    clock.now = 6000.0
    timer.begin()  # by steps, say
    assert not timer.due
    timer.end()
    timer.end()  # of one that was there already
    clock.now += 59
    assert not timer.due
    clock.now += 1
    assert timer.due


def test_only_the_newest_of_them_stays_and_displaces_no_other(tmp_path: Path) -> None:
    def left(*steps: int) -> list[int]:
        for step in steps:
            rolling = step % 10 != 0
            (tmp_path / f"step-{step}").mkdir()
            saved = json.dumps({"step": step, "rolling": rolling})
            (tmp_path / f"step-{step}" / "progress.json").write_text(saved)
            remove_old(tmp_path, 2)
        return sorted(int(path.name.removeprefix("step-")) for path in tmp_path.iterdir())

    assert left(1, 4) == [4]
    assert left(10, 13, 17) == [10, 17]
    assert left(20) == [10, 20]
    assert left(30, 31, 32) == [20, 30, 32]


@pytest.mark.slow
def test_a_run_that_is_killed_between_two_save_steps_loses_one_step(
    make_trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"max_steps": 5, "save_steps": 50, "max_concurrent": 1}
    unbroken: RLTrainer = make_trainer("unbroken", **settings, save_minutes=0)
    unbroken.train()
    unbroken.close()
    assert [path.name for path in unbroken.folder.checkpoints.iterdir()] == ["step-5"]

    killed: RLTrainer = make_trainer("killed", **settings)
    clock, step = Clock(), killed.step
    killed._keeper._timer = SaveTimer(5, clock)

    def take_step() -> Any:
        killed._keeper.wait()
        clock.now += 100.0
        if killed.step_count == 4:
            raise KeyboardInterrupt
        return step()

    monkeypatch.setattr(killed, "step", take_step)
    monkeypatch.setattr(killed._keeper, "rescue", lambda *args: None)
    with pytest.raises(KeyboardInterrupt):
        killed.train()
    killed.close()
    assert [path.name for path in killed.folder.checkpoints.iterdir()] == ["step-4"]

    resumed: RLTrainer = make_trainer("killed", **settings)
    assert resumed.resume({"trainer.args.save_minutes"}) == 4
    resumed.train()
    assert comparable(resumed.folder) == comparable(unbroken.folder)
