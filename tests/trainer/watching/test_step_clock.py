"""Every second of a step is put down to one part."""

from __future__ import annotations

import pytest

import vf
from vf.environments.episode import Activity
from vf.trainer.watching.step_clock import StepClock


class Time:
    """A clock that is set by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr("time.perf_counter", lambda: self.now)


@pytest.fixture
def clock_time(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch)


def doing(*names: str) -> list[Activity]:
    activities = []
    for name in names:
        activities.append(Activity(vf.Task("t", "?")))
        activities[-1].enter(name)
    return activities


def test_a_wait_is_shared_by_what_rollouts_do_then(clock_time: Time) -> None:
    clock = StepClock()
    with clock.waiting(lambda: doing("model", "model", "step", "score")):
        clock_time.now += 4.0
        clock.sample(doing("step"))  # one straggler: all of the wait is its tool's
        clock_time.now += 10.0
        clock.sample([])
        clock_time.now += 0.5
    lap = clock.lap()
    assert lap["generate"] == pytest.approx(2.0)
    assert lap["environment"] == pytest.approx(1.0 + 10.0)
    assert lap["reward"] == pytest.approx(1.0)
    assert lap["wait"] == pytest.approx(0.5)
    assert lap["total"] == pytest.approx(14.5)


def test_rollouts_without_a_place_wait_for_those_at_work(clock_time: Time) -> None:
    clock = StepClock()
    with clock.waiting(lambda: doing("model", "place", "place", "server")):
        clock_time.now += 3.0
        clock.sample(doing("server", "place"))
        clock_time.now += 2.0
    lap = clock.lap()
    assert lap["generate"] == pytest.approx(3.0)
    assert lap["wait"] == lap["outage"] == pytest.approx(1.0)


def test_a_lap_is_the_wall_time_whatever_was_timed(clock_time: Time) -> None:
    told: list[str] = []
    clock = StepClock(told.append)
    clock_time.now += 1.0
    with clock.part("train"):
        clock_time.now += 5.0
    clock_time.now += 2.0
    with clock.part("publish"):
        clock_time.now += 0.25
    first = clock.lap()
    assert first["train"] == pytest.approx(5.0)
    assert first["publish"] == pytest.approx(0.25)
    assert first["wait"] == pytest.approx(3.0), "what belongs to no part"
    assert first["total"] == pytest.approx(8.25)
    assert told == ["train", "publish"]
    clock_time.now += 1.0
    assert clock.lap()["total"] == pytest.approx(1.0), "a new lap begins with nothing"


def test_samples_outside_of_a_wait_count_nothing(clock_time: Time) -> None:
    clock = StepClock()
    clock.sample(doing("model"))
    clock_time.now += 1.0
    assert clock.lap()["generate"] == 0.0
