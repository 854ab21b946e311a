"""Workers that end, cannot be placed, or are ended in the middle of something."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import vf
from tests.trainer.collecting.test_workers import SECONDS, make_pool
from tests.waiting import until
from vf.cluster.fleet import Command, Resources, Role
from vf.cluster.local_fleet import LocalFleet, LocalHandle
from vf.environments.environment import Split
from vf.environments.episode import Activity
from vf.inference.model import Sampling
from vf.runtime.errors import ConfigError, PlacementError, TrainingError
from vf.trainer.collecting import worker_pool, worker_process
from vf.trainer.collecting.runners import Ended
from vf.trainer.collecting.worker_pool import WorkerPool

ENV = "test-doomed"


class Doomed(vf.Environment):
    """An episode that fails at once, unless its task has more in store.

    - ``once`` ends its process as long as its file is not there;
    - ``always`` ends each;
    - ``long`` runs until it is cancelled, and takes two seconds to close.

    Args:
        folder: Of what episodes leave behind.
    """

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.doing = ""

    def tasks(self, split: Split) -> Iterator[vf.Task]:
        yield vf.Task("none", "Hello.")

    async def reset(self, task: vf.Task) -> str:
        self.doing, mark = task.id, self.folder / task.id
        again = mark.exists()
        mark.write_text(str(os.getpid()))
        if task.id == "always" or (task.id == "once" and not again):
            await asyncio.sleep(0.5)  # until others have begun, too
            os.kill(os.getpid(), signal.SIGKILL)
        if task.id == "long":
            (self.folder / "begun").touch()
            await asyncio.Event().wait()
        await asyncio.sleep(1.0)
        raise OSError("over")

    async def close(self) -> None:
        if self.doing == "long":
            await asyncio.sleep(2.0)
            (self.folder / "closed").touch()


vf.register(ENV, Doomed)


class Reluctant(LocalFleet):
    """Refuses placements.

    Attributes:
        errors: What the next ones but ``good`` fail with; the last one is kept if ``forever``.
    """

    def __init__(self, good: int, *errors: Exception, forever: bool = False) -> None:
        super().__init__()
        self.good, self.errors, self.forever = good, list(errors), forever

    def place(self, role: Role, resources: Resources, command: Command) -> LocalHandle:
        if self.good:
            self.good -= 1
        elif self.errors:
            keep = self.forever and len(self.errors) == 1
            raise self.errors[0] if keep else self.errors.pop(0)
        return super().place(role, resources, command)


async def rollout(pool: WorkerPool, name: str) -> Ended:
    task = vf.Task(name, "Hello.")
    return await pool.rollout(
        ENV, task, sampling=Sampling(), seed=0, origin=None, activity=Activity(task)
    )


def play(pool: WorkerPool, *names: str) -> list[vf.Trace]:
    """Run rollouts of tasks, all at once."""

    async def main() -> list[vf.Trace]:
        await pool.start()
        try:
            found = await asyncio.gather(*(rollout(pool, name) for name in names))
        finally:
            await pool.stop()
        return [ended.trace for ended in found]

    return asyncio.run(asyncio.wait_for(main(), SECONDS))


def boundary(trace: vf.Trace) -> str:
    assert trace.error is not None
    return trace.error.boundary


def away() -> PlacementError:
    return PlacementError("the machine does not answer")


@pytest.mark.slow
def test_a_worker_that_cannot_be_replaced_for_a_while_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_pool, "PAUSE_SECONDS", 0.01)
    full = ConfigError("the log cannot be written")
    fleet, notes = Reluctant(1, away(), away(), away(), full, away()), list[str]()
    env = {"id": ENV, "args": {"folder": str(tmp_path)}}
    # Nothing is watched for a stall, either.
    pool = make_pool(tmp_path, fleet, env, notes, restarts_per_hour=2, stall_timeout=1e9)
    (trace,) = play(pool, "once")
    assert boundary(trace) == "environment"
    assert [note.partition(":")[0] for note in notes] == [
        "rollout worker 0 was ended by SIGKILL, maybe for lack of memory; it is replaced, and 1 "
        "rollouts are run again",
        "rollout worker 0 could not be placed; tried again",
        "rollout worker 0 could not begin",
    ]
    fleet.stop()


def test_the_run_ends_when_no_worker_could_be_placed_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_pool, "PAUSE_SECONDS", 0.01)
    fleet, notes = Reluctant(0, away(), forever=True), list[str]()
    env = {"id": ENV, "args": {"folder": str(tmp_path)}}
    pool = make_pool(
        tmp_path, fleet, env, notes, workers=2, restarts_per_hour=0, startup_timeout=0.2
    )
    with pytest.raises(TrainingError, match=r"placed for 0\.2 s.*startup_timeout.*not answer"):
        play(pool, "none")
    assert len(notes) == 2
    fleet.stop()


@pytest.mark.slow
def test_a_rollout_that_always_ends_its_worker_fails_and_no_other_does(tmp_path: Path) -> None:
    fleet, notes = LocalFleet(), list[str]()
    env = {"id": ENV, "args": {"folder": str(tmp_path)}}
    pool = make_pool(tmp_path, fleet, env, notes, workers=2, restarts_per_hour=4)
    traces = play(pool, "always", *(str(number) for number in range(5)))
    assert [boundary(trace) for trace in traces] == ["worker"] + ["environment"] * 5
    assert "3 rollout workers ended" in (traces[0].error.message if traces[0].error else "")
    assert traces[0].stop_reason is vf.StopReason.ERROR
    assert traces[0].reward is None
    assert len(notes) == 3
    fleet.stop()


@pytest.mark.slow
def test_a_worker_that_is_terminated_may_close_its_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "LOST_SECONDS", 0.0)
    monkeypatch.setattr(worker_process, "END_SECONDS", 0.5)
    fleet, notes = LocalFleet(), list[str]()
    env = {"id": ENV, "args": {"folder": str(tmp_path)}}
    pool = make_pool(tmp_path, fleet, env, notes)

    async def main() -> None:
        await pool.start()
        work = asyncio.create_task(rollout(pool, "long"))
        await until(lambda: (tmp_path / "begun").exists())
        os.kill(int((tmp_path / "long").read_text()), signal.SIGTERM)
        await until(lambda: notes)
        assert (tmp_path / "closed").exists()
        work.cancel()
        await asyncio.wait([work])
        await pool.stop()

    asyncio.run(asyncio.wait_for(main(), SECONDS))
    assert notes == [
        "the connection to rollout worker 0 was lost; it is replaced, and 1 rollouts are run again"
    ]
    fleet.stop()


class Slow(LocalFleet):
    """Places once it may."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.may = threading.Event(), threading.Event()
        self.placed: list[LocalHandle] = []

    def place(self, role: Role, resources: Resources, command: Command) -> LocalHandle:
        self.asked.set()
        self.may.wait(SECONDS)
        self.placed.append(super().place(role, resources, command))
        return self.placed[0]


def test_stopping_does_not_wait_for_a_placement_and_ends_what_is_placed_late(
    tmp_path: Path,
) -> None:
    fleet = Slow()
    pool = make_pool(tmp_path, fleet, {"id": ENV, "args": {"folder": str(tmp_path)}}, [])

    async def main() -> None:
        await pool.start()
        await until(fleet.asked.is_set)
        await pool.stop()
        fleet.may.set()
        await until(lambda: fleet.placed and fleet.placed[0].poll() is not None)

    asyncio.run(asyncio.wait_for(main(), SECONDS))
    fleet.stop()


@pytest.mark.slow
def test_a_note_names_a_worker_that_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "QUIET_SECONDS", 7.0)  # longer than between two beats
    fleet, notes = LocalFleet(), list[str]()
    pool = make_pool(tmp_path, fleet, {"id": ENV, "args": {"folder": str(tmp_path)}}, notes)

    async def main() -> None:
        await pool.start()
        running = asyncio.create_task(rollout(pool, "long"))
        await until((tmp_path / "begun").exists)
        process = int((tmp_path / "long").read_text())
        os.kill(process, signal.SIGSTOP)
        try:
            await until(lambda: notes)
        finally:
            os.kill(process, signal.SIGCONT)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await pool.stop()

    asyncio.run(asyncio.wait_for(main(), SECONDS))
    fleet.stop()
    (note,) = notes
    assert note.startswith("rollout worker 0 has given no sign of life for")
