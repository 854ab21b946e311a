"""A stall is noticed, written down with everybody in it, and told."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import vf
from vf.environments.activity import Activity
from vf.environments.environment import Split
from vf.trainer.rl_trainer import RLTrainer
from vf.trainer.watching.watchdog import Watchdog


def wait_for(condition: Any, seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(condition())


def test_a_stall_is_told_again_while_it_lasts_and_not_while_something_moves(
    tmp_path: Path,
) -> None:
    told: list[str] = []
    stuck = Activity(vf.Task("task-7", "?"))
    stuck.enter("step")
    stuck.turn = 2
    watchdog = Watchdog(0.4, lambda: [stuck], told.append, tmp_path / "stalls.log")
    watchdog.phase("generate")
    for _ in range(20):  # longer than the timeout, but never still
        watchdog.beat()
        time.sleep(0.04)
    assert not told
    assert wait_for(lambda: len(told) >= 2)
    watchdog.stop()
    assert "The trainer is in 'generate'" in told[0]
    assert "task task-7, turn 3" in told[0]
    assert "in 'step'" in told[0]
    text = (tmp_path / "stalls.log").read_text()
    assert text.count("no progress for") == len(told)
    assert "test_watchdog.py" in text, "the stack of this thread is there"


def test_the_stacks_of_all_threads_are_written_however_many(tmp_path: Path) -> None:
    let_go = threading.Event()
    threads = [
        threading.Thread(target=let_go.wait, name=f"waits-{number}", args=(60.0,))
        for number in range(200)
    ]
    for thread in threads:
        thread.start()
    told: list[str] = []
    watchdog = Watchdog(0.1, list, told.append, tmp_path / "stalls.log")
    try:
        assert wait_for(lambda: told)
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
