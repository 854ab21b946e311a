"""The order of tasks: every epoch has each once, and what rests comes back."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import vf
from vf.trainer.collecting.task_cursor import TaskCursor
from vf.trainer.run.run_environment import RunEnvironment
from vf.trainer.settings.config import TrainerArgs
from vf.trainer.settings.environments import EnvConfig


def cursor(count: int, **args: Any) -> TaskCursor:
    tasks = [vf.Task(f"task-{n}", "?") for n in range(count)]
    settings = EnvConfig(id="e")
    return TaskCursor(RunEnvironment("e", settings, vf.Environment(), TrainerArgs(**args), tasks))


@given(count=st.integers(1, 12), epochs=st.integers(1, 4), seed=st.integers(0, 99))
def test_every_epoch_has_every_task_once(count: int, epochs: int, seed: int) -> None:
    made = cursor(count, seed=seed)
    draws = [made.draw() for _ in range(count * epochs)]
    assert [draw.number for draw in draws] == list(range(count * epochs))
    for epoch in range(epochs):
        ids = [draw.task.id for draw in draws if draw.epoch == epoch]
        assert sorted(ids) == sorted(f"task-{n}" for n in range(count))


def test_each_epoch_is_shuffled_differently() -> None:
    made = cursor(50)
    first, second = ([made.draw().task.id for _ in range(50)] for _ in range(2))
    assert first != second


def test_solved_tasks_rest_and_are_visited_again() -> None:
    made = cursor(4, rest_easy=2, rest_hard=1)
    seen: list[tuple[int, str]] = []
    for _ in range(30):
        draw = made.draw()
        seen.append((draw.epoch, draw.task.id))
        outcomes = {"task-0": [1.0, 1.0], "task-1": [0.0, 0.0]}.get(draw.task.id, [0.0, 1.0])
        made.observe(draw, outcomes)
    epochs = {name: [e for e, task in seen if task == name] for name in ("task-0", "task-1")}
    last = seen[-1][0]
    assert epochs["task-0"] == list(range(0, last + 1, 3))[: len(epochs["task-0"])]
    assert epochs["task-1"] == list(range(0, last + 1, 2))[: len(epochs["task-1"])]
    assert len(epochs["task-0"]) >= 3
    for name in ("task-2", "task-3"):
        assert [e for e, task in seen if task == name][: last - 1] == list(range(last - 1))


def test_a_task_that_was_left_out_comes_back_with_a_higher_limit() -> None:
    made = cursor(4, max_prompt_len=100)
    made.leave_out("task-1")
    assert sorted(made.draw().task.id for _ in range(3)) == ["task-0", "task-2", "task-3"]
    for limit, left_out in ((100, 1), (99, 1), (101, 0)):
        resumed = cursor(4, max_prompt_len=limit)
        resumed.load(json.loads(json.dumps(made.state())))
        assert resumed.overlong == left_out


def test_a_task_that_gets_harder_does_not_rest_again() -> None:
    made = cursor(1, rest_easy=1)
    made.observe(made.draw(), [1.0, 1.0])
    assert made.resting == 1
    draw = made.draw()  # though all tasks rest in epoch 1, there is one
    assert draw.epoch == 2
    made.observe(draw, [0.0, 1.0])
    assert made.draw().epoch == 3


def test_thresholds() -> None:
    made = cursor(2, rest_easy=1, easy_outcome=0.9)
    first = made.draw()
    made.observe(first, [0.95, 0.9])
    made.observe(made.draw(), [0.95, 0.89])
    assert made.draw().task.id != first.task.id


@given(drawn=st.integers(0, 20), after=st.integers(1, 20))
def test_a_saved_cursor_resumes_where_it_was(drawn: int, after: int) -> None:
    made = cursor(3, rest_easy=1)
    for n in range(drawn):
        draw = made.draw()
        made.observe(draw, [1.0, 1.0] if n % 2 else [0.0, 1.0])
    again = cursor(3, rest_easy=1)
    again.load(json.loads(json.dumps(made.state())))
    assert [again.draw() for _ in range(after)] == [made.draw() for _ in range(after)]


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads that take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("restless")
def test_resting_tasks_are_counted_while_groups_finish() -> None:
    made = cursor(10_000, rest_easy=1)
    draws = [made.draw() for _ in range(10_000)]

    def finish() -> None:
        for draw in draws:
            made.observe(draw, [1.0])

    rollouts = threading.Thread(target=finish)
    rollouts.start()
    counts = [made.resting]
    while rollouts.is_alive():
        counts.append(made.resting)
    rollouts.join()
    assert counts == sorted(counts)
    assert made.resting == 10_000


def test_what_comes_next_can_be_seen_without_being_drawn() -> None:
    made = cursor(5, rest_easy=1)
    for _ in range(3):
        draw = made.draw()
    made.observe(draw, [1.0])  # it rests in the next epoch
    coming = [task.id for task in made.next(6)]
    assert len(coming) >= 4  # as far as a whole epoch reaches
    assert coming == [made.draw().task.id for _ in coming]
