"""A stall is noticed, written down with everybody in it, and told."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import vf
from vf.environments.environment import Split
from vf.environments.episode import Activity
from vf.trainer.rl_trainer import RLTrainer
from vf.trainer.watching.watchdog import Watchdog


class Clock:
    """A monotonic clock that is set by hand, and knows when a watchdog looks at it."""

    def __init__(self) -> None:
        self.now = 100.0
        self._looks = threading.Semaphore(0)

    def __call__(self) -> float:
        if threading.current_thread().name == "vf-watchdog":
            self._looks.release()
        return self.now

    def wait_for_look(self) -> None:
        """Wait until the watchdog looked twice: the second time at what is there now."""
        while self._looks.acquire(blocking=False):
            pass
        for _ in range(2):
            assert self._looks.acquire(timeout=60.0)


def test_a_stall_is_reported_again_while_it_lasts_and_not_while_something_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("vf.trainer.watching.watchdog.time.monotonic", clock)
    told: queue.Queue[str] = queue.Queue()
    stuck = Activity(vf.Task("task-7", "?"))
    stuck.enter("step")
    stuck.turn = 2
    watchdog = Watchdog(0.1, lambda: [stuck], told.put, tmp_path / "stalls.log")
    watchdog.phase("generate")
    for _ in range(5):  # longer than the timeout, but never still
        clock.now += 0.08
        watchdog.beat()
        clock.wait_for_look()
    assert told.empty()
    clock.now += 0.11
    first = told.get(timeout=60.0)
    clock.wait_for_look()
    assert told.empty()
    clock.now += 0.1
    told.get(timeout=60.0)
    watchdog.stop()
    assert "The trainer is in 'generate'" in first
    assert "task task-7, turn 3" in first
    assert "in 'step'" in first
    text = (tmp_path / "stalls.log").read_text()
    assert text.count("no progress for") == 2
    assert "test_watchdog.py" in text, "the stack of this thread is there"


def test_the_stacks_of_all_threads_are_written_however_many(tmp_path: Path) -> None:
    let_go = threading.Event()
    threads = [
        threading.Thread(target=let_go.wait, name=f"waits-{number}", args=(60.0,))
        for number in range(200)
    ]
    for thread in threads:
        thread.start()
    told: queue.Queue[str] = queue.Queue()
    watchdog = Watchdog(0.1, list, told.put, tmp_path / "stalls.log")
    try:
        told.get(timeout=60.0)
    finally:
        let_go.set()
        watchdog.stop()
    text = (tmp_path / "stalls.log").read_text()
    assert all(f"waits-{number}" in text for number in range(200))
    assert text.index("MainThread") < text.index("test_watchdog.py") < text.index("waits-0")
    assert text.count("in run") < 50, "what stands alike is written once"


class Hangs(vf.Environment):
    """A tool that one task never gets an answer from, until it is let go."""

    max_turns = 2
    rubric = vf.Rubric(outcome=lambda trace: len(trace.reply) % 2)
    released = threading.Event()

    def tasks(self, split: Split) -> Iterator[vf.Task]:
        for index in range(2):
            yield vf.Task(f"task-{index}", f"Say {index}.")

    def reset(self, task: vf.Task) -> str:
        self.task_id = task.id
        return str(task.prompt)

    def step(self, message: vf.Message) -> vf.Step:
        if self.task_id == "task-1":
            self.released.wait(60.0)
        return vf.Step("", terminated=True)


@pytest.mark.slow
def test_a_run_says_who_waits_for_what(make_trainer: Any) -> None:
    vf.register("test-hangs", Hangs)
    trainer: RLTrainer = make_trainer(env="test-hangs", stall_timeout=2.0, max_steps=1)
    told: list[str] = []

    def note(text: str) -> None:
        told.append(text)
        Hangs.released.set()

    trainer.display.note = note  # type: ignore[method-assign]
    line = trainer.step()
    stalls = [text for text in told if "no progress" in text]
    assert stalls
    assert "rollouts under way: 8 in 'step'" in stalls[0]
    assert "task task-1, turn 2" in stalls[0]
    assert line["time/environment"] > 1.0, "the wait is put down to the environment"
    assert "test_watchdog" not in stalls[0]
    assert "MainThread" in trainer.folder.stalls.read_text()
