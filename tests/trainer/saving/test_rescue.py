"""A run that ends early saves the last finished step, and resumes from there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

import vf
from tests.trainer.conftest import Digits
from tests.trainer.saving.comparing import comparable
from tests.waiting import wait_until
from vf.runtime.errors import TrainingError
from vf.trainer.rl_trainer import RLTrainer
from vf.trainer.saving.checkpoint_files import latest_checkpoint

pytestmark = pytest.mark.slow

# One rollout at a time, so that the metrics are equal to the last bit; no checkpoint but the last.
SETTINGS = {
    "max_steps": 4,
    "save_steps": 50,
    "save_minutes": 0,
    "lora_dropout": 0.1,
    "eval_strategy": "steps",
    "eval_steps": 2,
    "eval_examples": 4,
    "max_concurrent": 1,
    "max_error_rate": 0.01,
}


class Moody(Digits):
    """It cannot be reset while the split is named in ``down``."""

    down: ClassVar[set[str]] = set()

    def reset(self, task: vf.Task) -> str:
        if task.id.split("-")[0] in self.down:
            raise RuntimeError("the service behind it is gone")
        return str(task.prompt)


vf.register("test-moody", Moody)


@pytest.fixture(autouse=True)
def _up() -> Iterator[None]:
    yield
    Moody.down.clear()


def fails_after(monkeypatch: pytest.MonkeyPatch, trainer: RLTrainer, step: int, split: str) -> None:
    """Let rollouts of a split fail once a step is done, or about to be evaluated."""
    publish, take_step = trainer.learner.publish, trainer.step

    def publish_and_break(version: int) -> float:
        gap = publish(version)
        if trainer.step_count == step and split == "eval":
            Moody.down.add(split)
        return gap

    def break_and_step() -> dict[str, float]:
        if trainer.step_count == step and split == "train":
            Moody.down.add(split)
        return take_step()

    monkeypatch.setattr(trainer.learner, "publish", publish_and_break)
    monkeypatch.setattr(trainer, "step", break_and_step)


def go_on(make_trainer: Any) -> tuple[RLTrainer, int]:
    """Resume the run with everything in order again; returns the step that it began after."""
    Moody.down.clear()
    trainer: RLTrainer = make_trainer("broken", env="test-moody", **SETTINGS)
    step = trainer.resume()
    trainer.train()
    return trainer, step


@pytest.mark.parametrize(("step", "split"), [(1, "train"), (2, "eval"), (4, "eval")])
def test_an_environment_that_fails_costs_no_training(
    make_trainer: Any, monkeypatch: pytest.MonkeyPatch, step: int, split: str
) -> None:
    unbroken: RLTrainer = make_trainer("unbroken", env="test-moody", **SETTINGS)
    unbroken.train()
    unbroken.close()

    broken: RLTrainer = make_trainer("broken", env="test-moody", **SETTINGS)
    fails_after(monkeypatch, broken, step, split)
    with pytest.raises(TrainingError):
        broken.train()
    broken.close()
    assert (
        latest_checkpoint(broken.folder.checkpoints) == broken.folder.checkpoints / f"step-{step}"
    )
    assert [line["step"] for line in broken.folder.read_metrics()] == list(range(step + 1))

    resumed, begun = go_on(make_trainer)
    assert begun == step
    assert comparable(resumed.folder) == comparable(unbroken.folder)
    for number in (0, 2, 4):
        assert len(list(resumed.folder.eval_traces(number))) == 4


def test_failures_that_are_saved_with_it_do_not_end_it_again(
    make_trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer: RLTrainer = make_trainer("broken", env="test-moody", **SETTINGS)

    def wait_for_failures(metrics: dict[str, float]) -> None:
        if metrics["step"] == 1:  # now the rollouts of step 2 run, and where it stands is noted
            Moody.down.add("train")
            wait_until(lambda: trainer.collector.orchestrator._open[2]._failures)

    monkeypatch.setattr(trainer.display, "step", wait_for_failures)
    with pytest.raises(TrainingError, match="the service behind it is gone"):
        trainer.train()
    trainer.close()
    resumed, begun = go_on(make_trainer)
    assert begun == 1
    lines = resumed.folder.read_metrics()
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    assert lines[2]["rollouts/failed"] >= 1, "they are told, too"
    assert lines[2]["rollouts/scored"] == 16


def test_interrupted_it_is_saved(make_trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer: RLTrainer = make_trainer("broken", env="test-moody", **SETTINGS)
    accumulate, notes = trainer.policy.accumulate, list[str]()

    def interrupt(*args: Any) -> None:
        accumulate(*args)
        if trainer.step_count == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(trainer.policy, "accumulate", interrupt)
    monkeypatch.setattr(trainer.display, "note", notes.append)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    trainer.close()
    assert notes[-1] == f"step 1 is saved; resume with vf-rl --resume {trainer.folder.path}"
    resumed, begun = go_on(make_trainer)
    assert begun == 1
    assert [line["step"] for line in resumed.folder.read_metrics()] == [0, 1, 2, 3, 4]


def test_weights_between_two_steps_are_not_saved(
    make_trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SETTINGS | {"num_substeps": 2, "batch_size": 32}
    trainer: RLTrainer = make_trainer(env="test-moody", **settings)
    finish, calls = trainer.policy.finish, list[int]()

    def interrupt(*args: Any) -> Any:
        calls.append(trainer.step_count)
        if calls == [1, 1, 2, 2]:
            raise KeyboardInterrupt
        return finish(*args)

    monkeypatch.setattr(trainer.policy, "finish", interrupt)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert not list(trainer.folder.checkpoints.glob("step-*"))


def test_a_full_disk_does_not_hide_why_it_ended(
    make_trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer: RLTrainer = make_trainer(env="test-moody", **SETTINGS)
    fails_after(monkeypatch, trainer, 1, "train")
    trainer.folder.checkpoints.rmdir()
    trainer.folder.checkpoints.touch()  # nothing can be written there
    with pytest.raises(TrainingError, match="the service behind it is gone"):
        trainer.train()
