"""Rollouts in worker processes: the same traces, whatever happens to the processes."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import vf
from vf.cluster.local_fleet import LocalFleet
from vf.environments.environment import Split
from vf.environments.episode import Activity
from vf.environments.registry import registrar
from vf.inference.embedded.embedded_server import EmbeddedServer
from vf.inference.leases import Member, Router, Slot
from vf.inference.model import Sampling
from vf.inference.serving import Serving
from vf.runtime.errors import ConfigError, TrainingError
from vf.traces.store import TraceStore
from vf.trainer.collecting.worker import make_sendable
from vf.trainer.collecting.worker_pool import WorkerPool
from vf.trainer.collecting.worker_setup import WorkerSetup
from vf.trainer.rl_trainer import RLTrainer
from vf.trainer.settings.load_config import parse_config

TESTS = os.getpid()  # workers inherit nothing of this: they import the module again
SECONDS = 120.0  # for anything here


def even(trace: vf.Trace) -> float:
    """Share of the reply's characters that are even digits."""
    return sum(c in "02468" for c in trace.reply) / max(1, len(trace.reply))


def relative(traces: Sequence[vf.Trace]) -> list[float]:
    """The rank of each reply's length."""
    sizes = sorted(len(trace.reply) for trace in traces)
    return [sizes.index(len(trace.reply)) / len(traces) for trace in traces]


class Mortal(vf.Environment):
    """A rollout ends the process that it runs in, until a file says that one has.

    Args:
        grave: The file; none ends without one.
    """

    max_turns = 2

    def __init__(self, grave: str | None = None, together: bool = False) -> None:
        self.grave = None if grave is None else Path(grave)
        self.rubric = vf.Rubric(
            outcome=even, group_rewards=[vf.GroupReward(relative)] if together else []
        )

    def tasks(self, split: Split) -> Iterator[vf.Task]:
        for index in range(8):
            yield vf.Task(f"{split}-{index}", f"Say {index}.")

    def step(self, reply: vf.Message) -> vf.Step:
        if self.grave is not None and not self.grave.exists():
            self.grave.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return vf.Step("Once more.", info={"process": os.getpid()})


class Unborn(vf.Environment):
    """Cannot be made in another process than the one that imports the tests."""

    def __init__(self, maker: int, how: str) -> None:
        if os.getpid() == maker:
            return
        if how == "exit":
            print("out of luck", flush=True)
            os._exit(3)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError("the corpus is not on this machine")

    def tasks(self, split: Split) -> Iterator[vf.Task]:
        yield vf.Task("1", "Hello.")


class Patient(vf.Environment):
    """An episode that never begins, and says when it is closed.

    Args:
        closed: The file that is made then.
        hogs: Whether it lets nothing else run meanwhile.
    """

    def __init__(self, closed: str, hogs: bool = False) -> None:
        self.closed = Path(closed)
        self.hogs = hogs

    def tasks(self, split: Split) -> Iterator[vf.Task]:
        yield vf.Task("1", "Hello.")

    async def reset(self, task: vf.Task) -> str:
        if self.hogs:
            time.sleep(SECONDS)  # noqa: ASYNC251  the very mistake
        await asyncio.Event().wait()
        return ""

    async def close(self) -> None:
        self.closed.touch()


vf.register("test-patient", Patient)
vf.register("test-mortal", Mortal)
vf.register("test-unborn", Unborn)


def essence(trace: vf.Trace) -> dict[str, Any]:
    """Everything about a trace that does not depend on where and when it was made."""
    return {
        "origin": trace.origin,
        "task": trace.task,
        "seed": trace.seed,
        "said": [message.content for message in trace.messages],
        "ids": [branch.token_ids for branch in trace.branches],
        "versions": [branch.weight_version for branch in trace.branches],
        "score": trace.score,
        "stop": trace.stop_reason,
        "error": trace.error,
    }


def written(trainer: RLTrainer) -> dict[str, list[dict[str, Any]]]:
    """Return what is in the files of a run, by file."""
    return {
        path.name: sorted(map(essence, TraceStore(path)), key=lambda each: int(each["seed"]))
        for path in sorted(trainer.folder.traces.glob("*.jsonl"))
    }


def run(
    make_trainer: Callable[..., RLTrainer], workers: int, at_once: int, **env_args: Any
) -> RLTrainer:
    trainer = make_trainer(
        f"workers-{workers}",
        env="test-mortal",
        env_args=env_args,
        rollouts={"workers": workers},
        max_steps=2,
        batch_size=8,
        rollouts_per_example=4,
        max_concurrent=at_once,
        eval_strategy="steps",
        eval_steps=2,
        eval_examples=3,
        eval_rollouts_per_example=2,
    )
    trainer.train()
    trainer.close()
    return trainer


@pytest.mark.slow
@pytest.mark.parametrize("together", [False, True])
def test_the_same_seeds_give_the_same_traces_in_worker_processes(
    make_trainer: Callable[..., RLTrainer], together: bool
) -> None:
    # One at a time: timing decides which rollouts share a forward pass, and so the last digits.
    apart, here = (run(make_trainer, workers, 1, together=together) for workers in (2, 0))
    traces = [trace for path in apart.folder.traces.glob("*") for trace in TraceStore(path)]
    processes = {trace.info["process"] for trace in traces}
    assert len(processes) == 2
    assert os.getpid() not in processes
    assert written(apart) == written(here)
    assert {file: len(traces) for file, traces in written(here).items()} == COUNTS


COUNTS = {
    "eval-000000.jsonl": 6,
    "eval-000002.jsonl": 6,
    "step-000001.jsonl": 8,
    "step-000002.jsonl": 8,
}


@pytest.mark.slow
def test_what_a_killed_worker_had_under_way_is_run_again_and_counted_once(
    make_trainer: Callable[..., RLTrainer], tmp_path: Path
) -> None:
    grave = tmp_path / "grave"
    trainer = run(make_trainer, 2, 16, grave=str(grave))
    assert grave.exists()
    found = written(trainer)
    assert {file: len(traces) for file, traces in found.items()} == COUNTS
    for traces in found.values():
        assert all(trace["error"] is None for trace in traces)
        assert len({trace["seed"] for trace in traces}) == len(traces)
    assert isinstance(trainer.engine, EmbeddedServer)
    assert trainer.engine.serving.under_way == 0
    said = (trainer.folder.logs / "trainer.log").read_text()
    ending = r"was ended by SIGKILL, maybe for lack of memory; it is replaced, and \d+ rollouts are"
    assert len(re.findall(ending, said)) == 1


async def rollout_in(pool: WorkerPool, name: str, **info: Any) -> None:
    task = vf.Task("1", "Hello.", info=info)
    async with asyncio.timeout(SECONDS):
        try:
            await pool.start()
            await pool.rollout(
                name,
                task,
                sampling=Sampling(),
                seed=0,
                origin=None,
                activity=Activity(task),
            )
        finally:
            await pool.stop()


def make_pool(
    folder: Path, fleet: LocalFleet, env: dict[str, Any], notes: list[str], **rollouts: Any
) -> WorkerPool:
    args = {"stall_timeout": rollouts.pop("stall_timeout", 300.0)}
    count = rollouts.get("workers", 1)
    raw = {
        "model": "tiny",
        "env": env,
        "rollouts": {"workers": 1, **rollouts},
        "trainer": {"args": args},
    }
    config, _ = parse_config(raw)
    module = registrar(config.env[0].id)
    modules = {} if module is None else {config.names[0]: module}
    setup = WorkerSetup(config, None, [], modules, number=0, count=count)
    leases = Router([Slot(Member("http://127.0.0.1:9/v1"), Serving("tiny"))])
    return WorkerPool(setup, fleet=fleet, leases=leases, logs=folder, note=notes.append)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "kind", "said"),
    [
        ("raise", ConfigError, "test-unborn.*the corpus is not on this machine"),
        ("exit", TrainingError, r"exit status 3 before it could run rollouts:\n(.|\n)*out of luck"),
        ("kill", TrainingError, "was ended by SIGKILL.*rollouts.restarts_per_hour = 1"),
    ],
)
def test_a_worker_that_cannot_begin_ends_the_run_with_the_cause(
    tmp_path: Path, how: str, kind: type[Exception], said: str
) -> None:
    notes: list[str] = []
    fleet = LocalFleet()
    env = {"id": "test-unborn", "args": {"maker": TESTS, "how": how}}
    pool = make_pool(tmp_path, fleet, env, notes, restarts_per_hour=1)
    with pytest.raises(kind, match=said):
        asyncio.run(rollout_in(pool, "test-unborn"))
    assert len(notes) == (how == "kill")
    fleet.stop()


@dataclass
class Odd:
    """Is JSON, but its class is nowhere to be found."""

    number: int


Odd.__qualname__ = "nowhere.Odd"


@pytest.mark.slow
def test_a_task_that_cannot_be_sent_is_named_with_the_remedy(tmp_path: Path) -> None:
    fleet = LocalFleet()
    pool = make_pool(tmp_path, fleet, {"id": "test-mortal"}, [])
    with pytest.raises(ConfigError, match=r"(?s)task '1' cannot be sent.*rollouts\.workers = 0"):
        asyncio.run(rollout_in(pool, "test-mortal", odd=Odd(3)))
    fleet.stop()


@pytest.mark.slow
def test_what_a_rollout_does_is_seen_here_and_it_ends_there_when_it_is_cancelled(
    tmp_path: Path,
) -> None:
    closed, task, fleet = tmp_path / "closed", vf.Task("1", "Hello."), LocalFleet()
    pool = make_pool(tmp_path, fleet, {"id": "test-patient", "args": {"closed": str(closed)}}, [])

    async def scene() -> None:
        resetting = asyncio.Event()
        seen: list[str] = []

        def note() -> None:
            seen.append(activity.doing)
            if activity.doing == "reset":
                resetting.set()

        activity = Activity(task, note)
        await pool.start()
        work = asyncio.create_task(
            pool.rollout(
                "test-patient", task, sampling=Sampling(), seed=0, origin=None, activity=activity
            )
        )
        await resetting.wait()
        assert seen == ["worker", "reset"]
        work.cancel()
        await asyncio.wait([work])
        assert work.cancelled()
        assert closed.exists(), "the episode is closed before the cancellation returns"
        await pool.stop()

    asyncio.run(asyncio.wait_for(scene(), SECONDS))
    fleet.stop()


@pytest.mark.slow
def test_a_worker_that_hangs_says_where_and_is_then_lost(tmp_path: Path) -> None:
    fleet = LocalFleet()
    env = {"id": "test-patient", "args": {"closed": str(tmp_path / "closed"), "hogs": True}}
    pool = make_pool(tmp_path, fleet, env, [], restarts_per_hour=0, stall_timeout=3.0)
    with pytest.raises(TrainingError, match=r"no sign of life for 6 s.*under way: 1"):
        asyncio.run(rollout_in(pool, "test-patient"))
    stack = (tmp_path / "worker-0.log").read_text()
    assert re.search(r"Timeout(.|\n)*test_workers\.py.* in reset", stack)
    fleet.stop()


def test_info_that_cannot_be_sent_becomes_what_its_json_says() -> None:
    found = vf.Trace("e", vf.Task("1", "?"), seed=0, info={"odd": Odd(3), "pair": (1, 2)})
    make_sendable(found)
    assert found.info == {"odd": {"number": 3}, "pair": [1, 2]}
    kept = vf.Trace("e", vf.Task("1", "?"), seed=0, info={"pair": (1, 2)})
    make_sendable(kept)
    assert kept.info == {"pair": (1, 2)}
