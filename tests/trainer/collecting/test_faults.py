"""What fails is named, soon, and is never a reward."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import vf
from tests.waiting import Clock, wait_until
from vf.environments.environment import Split
from vf.runtime.errors import EngineError, TrainingError
from vf.trainer.collecting import collector
from vf.trainer.rl_trainer import RLTrainer

CLOCK = Clock()


class Faulty(vf.Environment):
    """Fails in a chosen way, always or for every n-th episode."""

    max_turns = 1
    timeout = 60.0

    def __init__(self, how: str, every: int = 1) -> None:
        self.how = how
        self.every = every
        scorers: dict[str, Any] = {"nan": _nan, "hang-score": _hang}
        self.rubric = vf.Rubric(outcome=scorers.get(how, _length))

    def tasks(self, split: Split) -> Iterator[vf.Task]:
        for index in range(8):
            yield vf.Task(str(index), "Hello.")

    async def step(self, reply: vf.Message) -> vf.Step:
        if self.rng.randrange(self.every) == 0:
            if self.how == "raise":
                raise KeyError("the database is gone")
            if self.how == "hang":
                await CLOCK.skip(60.0)
        return vf.Step(terminated=True)


def _nan(trace: vf.Trace) -> float:
    return float("nan")


async def _hang(trace: vf.Trace) -> float:
    await CLOCK.skip(60.0)
    return 1.0


def _length(trace: vf.Trace) -> float:
    return min(1.0, len(trace.reply) / 20)


vf.register("test-faulty", Faulty)


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        ("raise", "step raised KeyError: 'the database is gone'"),
        ("hang", r"took longer than its 60 s, and was waiting for step"),
        ("nan", "'_nan' returned nan"),
        ("hang-score", r"took longer than its 60 s, and was waiting for score"),
    ],
)
def test_a_step_in_which_all_fails_stops_the_run_with_the_cause(
    make_trainer: Any, monkeypatch: pytest.MonkeyPatch, how: str, cause: str
) -> None:
    CLOCK.install(monkeypatch)
    trainer: RLTrainer = make_trainer(env="test-faulty", env_args={"how": how})
    with pytest.raises(TrainingError, match=cause):
        trainer.step()


def test_failed_rollouts_are_replaced_and_stay_out_of_the_baseline(make_trainer: Any) -> None:
    trainer: RLTrainer = make_trainer(
        env="test-faulty", env_args={"how": "raise", "every": 6}, max_error_rate=1.0
    )
    metrics = trainer.step()
    traces = list(trainer.folder.step_traces(1))
    failed = [trace for trace in traces if trace.error is not None]
    assert failed, "the draw must make some fail"
    assert all(trace.reward is None for trace in failed)
    assert metrics["rollouts/failed"] == len(failed)
    assert metrics["rollouts/scored"] == len(traces) - len(failed) == 16


def test_a_dead_engine_ends_the_run(make_trainer: Any) -> None:
    trainer: RLTrainer = make_trainer(max_tokens=150, batch_size=32)

    norm = trainer.policy.weights.module.model.norm
    fine, passes = norm.forward, count()

    def broken(*args: Any, **kwargs: Any) -> Any:
        if threading.current_thread().name != "vf-generation":  # the trainer's pass
            return fine(*args, **kwargs)
        if next(passes) < 30:  # the first answers are under way
            return fine(*args, **kwargs)
        raise RuntimeError("the device fell off the bus")

    norm.forward = broken
    trainer.args.max_steps = 50
    with pytest.raises((EngineError, TrainingError), match="the device fell off the bus"):
        trainer.train()


class Stubborn(Faulty):
    """Swallows the first request to end, as a bare ``except:`` does."""

    async def step(self, reply: vf.Message) -> vf.Step:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(120.0)
        await asyncio.sleep(120.0)
        return vf.Step(terminated=True)


vf.register("test-stubborn", Stubborn)


def test_an_environment_that_does_not_end_cannot_hold_up_the_end(
    make_trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector, "STOP_TIMEOUT", 0.5)
    trainer: RLTrainer = make_trainer(env="test-stubborn", env_args={"how": "never"})
    trainer.collector.open(1, version=0)
    activities = trainer.collector.orchestrator.activities
    wait_until(lambda: any(each.doing == "step" for each in activities()))
    closing = threading.Thread(target=trainer.close, daemon=True)
    closing.start()
    closing.join(60.0)
    assert not closing.is_alive()


def test_a_signal_during_the_end_leaves_no_engine_behind(
    make_trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread would keep the process from ending, for ever."""
    before = {*threading.enumerate()}  # an engine of another test's may be among them
    trainer: RLTrainer = make_trainer()
    stop = trainer.collector.orchestrator.stop

    async def interrupted() -> None:
        await stop()
        signal.raise_signal(signal.SIGINT)  # is heard in the main thread, in the middle of a closer

    monkeypatch.setattr(trainer.collector.orchestrator, "stop", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trainer.close()
    left = {*threading.enumerate()} - before
    assert not any(thread.name == "vf-generation" for thread in left)


def test_an_evaluation_that_finds_no_room_for_its_traces_says_so(
    make_trainer: Any, tmp_path: Path
) -> None:
    trainer: RLTrainer = make_trainer(eval_strategy="steps", eval_examples=2)
    (tmp_path / "run" / "traces" / "eval-000000.jsonl").symlink_to("/dev/full")
    with pytest.raises(TrainingError, match=r"a trace could not be written to .*make room"):
        trainer.evaluate()


class Homeless(vf.Environment):
    """What it needs does not start."""

    rubric = vf.Rubric(outcome=_length)

    def tasks(self, split: Split) -> Iterator[vf.Task]:
        yield vf.Task("only", "Hello.")

    def start(self) -> None:
        raise vf.ConfigError("the search server does not start")


vf.register("test-homeless", Homeless)


def test_an_environment_that_does_not_start_leaves_no_thread(make_trainer: Any) -> None:
    before = {thread.name for thread in threading.enumerate()}
    with pytest.raises(vf.ConfigError, match="the search server does not start"):
        make_trainer(env="test-homeless")
    left = {thread.name for thread in threading.enumerate()} - before
    assert not {"vf-rollouts", "vf-watchdog"} & left
