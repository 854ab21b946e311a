"""Which checkpoints stay, what a full disk costs, and which are refused."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.trainer.saving.comparing import stored
from vf.inference import model_files
from vf.runtime.errors import CheckpointError, ConfigError
from vf.trainer.learning.sharding import checkpoint_shards
from vf.trainer.rl_trainer import RLTrainer
from vf.trainer.saving.checkpoint_files import (
    ADAPTER_WEIGHTS,
    latest_checkpoint,
    mark_best,
    remove_old,
)

pytestmark = pytest.mark.slow


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def make_checkpoints(folder: Path, steps: Iterable[int]) -> None:
    for step in steps:
        (folder / f"step-{step}").mkdir(parents=True)
        (folder / f"step-{step}" / "progress.json").write_text("{}")


def saved_run(make_trainer: Any, steps: int = 1, **settings: Any) -> Path:
    """Train steps, save, and end; return the checkpoint."""
    trainer: RLTrainer = make_trainer(**settings)
    for _ in range(steps):
        trainer.step()
    checkpoint = trainer.save()
    trainer.close()
    return checkpoint


@pytest.mark.parametrize("best", [1, 4, 12])
def test_the_newest_and_the_best_stay(tmp_path: Path, best: int) -> None:
    make_checkpoints(tmp_path, range(1, 13))
    mark_best(tmp_path / "step-2")
    mark_best(tmp_path / f"step-{best}")
    remove_old(tmp_path, 3)
    expected = {"best", "step-10", "step-11", "step-12", f"step-{best}"}
    assert names(tmp_path) == expected
    assert (tmp_path / "best").resolve() == tmp_path / f"step-{best}"


def test_what_a_killed_removal_left_goes_too(tmp_path: Path) -> None:
    make_checkpoints(tmp_path, range(1, 3))
    (tmp_path / ".removing-step-0" / "model").mkdir(parents=True)
    remove_old(tmp_path, 2)
    assert names(tmp_path) == {"step-1", "step-2"}


def test_the_best_by_held_out_reward_is_kept(make_trainer: Any) -> None:
    trainer: RLTrainer = make_trainer(
        max_steps=5,
        eval_strategy="steps",
        eval_steps=1,
        eval_examples=4,
        save_steps=1,
        save_total_limit=1,
    )
    trainer.train()
    rewards = {
        line["step"]: line["eval/reward/mean"]
        for line in trainer.folder.read_metrics()
        if line["step"]
    }
    best = max(rewards, key=lambda step: (rewards[step], -step))
    folder = trainer.folder.checkpoints
    assert (folder / "best").resolve().name == f"step-{best}"
    assert names(folder) == {"best", "step-5", f"step-{best}"}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 KiB at the place of the run's checkpoints."""
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small file system can only be mounted by root")
    (tmp_path / "run" / "traces").mkdir()
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_stops_no_run_and_leaves_the_last_good_checkpoint(
    small_disk: Path, make_trainer: Any
) -> None:
    trainer: RLTrainer = make_trainer(max_steps=3, save_steps=1)
    good = small_disk / "step-0"
    make_checkpoints(small_disk, range(1))
    notes: list[str] = []
    trainer.display.note = notes.append  # type: ignore[assignment, method-assign]
    with pytest.raises(CheckpointError, match="step-3 could not be written"):
        trainer.train()
    assert [line["step"] for line in trainer.folder.read_metrics()] == [1, 2, 3], "it went on"
    assert names(small_disk) == {"step-0"}, "nothing half-written is left"
    told = [note for note in notes if "could not be written" in note]
    assert len(told) == 3
    assert all(f"its last good checkpoint: {good}" in note for note in told)


def test_settings_that_differ_are_listed_and_refused_unless_allowed(make_trainer: Any) -> None:
    saved_run(make_trainer, max_steps=2)
    changes = {"learning_rate": 1e-3, "temperature": 0.7, "max_steps": 4}
    told = {f"trainer.args.{name}" for name in changes}
    other: RLTrainer = make_trainer(**changes)
    with pytest.raises(ConfigError) as refused:
        other.resume(told - {"trainer.args.temperature"})
    said = str(refused.value)
    assert "trainer.args.temperature: 1.0 then, 0.7 now" in said
    assert "learning_rate" not in said
    assert "--allow-changes" in said
    assert other.step_count == 0
    assert other.resume(told) == 1
    other.close()
    assert make_trainer(**changes).resume(allow_changes=True) == 1


def test_another_model_of_the_same_shape_is_refused(
    make_trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_run(make_trainer, max_steps=2)

    load = model_files.load_module

    def fine_tuned(*args: Any) -> Any:
        model = load(*args)
        with torch.no_grad():
            model.get_output_embeddings().weight[0, 0] += 1.0
        return model

    monkeypatch.setattr("vf.trainer.learning.model.building.load_module", fine_tuned)
    other: RLTrainer = make_trainer(max_steps=2)
    with pytest.raises(ConfigError, match="weights of model = 'tiny' are not those that the run"):
        other.resume()
    assert other.resume(allow_changes=True) == 1


def test_a_table_that_was_changed_on_purpose_is_not_refused(make_trainer: Any) -> None:
    saved_run(make_trainer, steps=0, max_steps=2)
    other: RLTrainer = make_trainer(max_steps=2, env_args={"shuffled": True})
    with pytest.raises(ConfigError, match=r"env\.args\.shuffled: None then, True now"):
        other.resume({"env.arg", "env.args.shuffle"})
    assert other.resume({"env.args"}) == 0


def test_a_copy_of_a_checkpoint_is_not_one_of_the_runs(tmp_path: Path) -> None:
    make_checkpoints(tmp_path, range(9, 11))
    (tmp_path / "step-9").rename(tmp_path / "step-9-copy")
    assert latest_checkpoint(tmp_path) == tmp_path / "step-10"
    remove_old(tmp_path, 1)
    assert names(tmp_path) == {"step-9-copy", "step-10"}


def test_a_checkpoint_that_could_not_be_written_is_not_the_best(make_trainer: Any) -> None:
    trainer: RLTrainer = make_trainer(max_steps=3)
    keeper, folder = trainer._keeper, trainer.folder.checkpoints
    (folder / "step-2" / "mine").mkdir(parents=True)  # something else is in its place

    def evaluated(step: int, reward: float) -> None:
        trainer.step_count = step
        best = keeper.is_best(reward)
        keeper.begin(trainer._progress(), best=best)

    for step, reward in ((1, 0.2), (2, 0.9), (3, 0.5)):
        evaluated(step, reward)
    keeper.wait()
    assert names(folder) == {"step-1", "step-2", "step-3", "best"}
    assert keeper.best_reward == 0.5
    assert (folder / "best").resolve().name == "step-3"


def test_a_best_checkpoint_that_a_kill_left_without_its_mark_gets_it(
    make_trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer: RLTrainer = make_trainer(max_steps=4)
    keeper, folder = trainer._keeper, trainer.folder.checkpoints
    for step, reward in ((1, 0.2), (2, 0.9)):
        trainer.step_count = step
        assert keeper.is_best(reward)
        keeper.begin(trainer._progress(), best=step == 1)  # killed before step-2 is marked
    keeper.wait()
    assert (folder / "best").resolve().name == "step-1"
    trainer.close()
    again: RLTrainer = make_trainer(max_steps=4)
    assert again.resume() == 2
    assert (folder / "best").resolve().name == "step-2"
    again.step_count = 3
    again.save()
    again.close()
    assert make_trainer(max_steps=4).resume() == 3
    assert (folder / "best").resolve().name == "step-2"


def test_a_file_system_without_links_ends_no_run(
    make_trainer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any) -> None:
        raise PermissionError("Operation not permitted")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    trainer: RLTrainer = make_trainer(max_steps=1)
    notes: list[str] = []
    trainer.display.note = notes.append  # type: ignore[assignment, method-assign]
    trainer._keeper.begin(trainer._progress(), best=True)
    trainer._keeper.wait()
    assert names(trainer.folder.checkpoints) == {"step-0"}
    assert "not linked as best" in notes[-1]


@dataclass
class Command:
    """Unpickled in full, it runs."""

    path: Path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def replace_moment(checkpoint: Path, value: Any) -> None:
    """Write a checkpoint's state again, with a value in place of an optimizer's tensor."""
    tensors = stored(checkpoint)
    tensors[list(tensors)[-1]] = value
    shutil.rmtree(checkpoint / "state")
    checkpoint_shards.write(checkpoint / "state", tensors)


@pytest.mark.parametrize("part", ["random.pt", "state/.metadata", "a moment"])
def test_no_command_in_a_checkpoint_that_somebody_sent_is_run(
    make_trainer: Any, tmp_path: Path, part: str
) -> None:
    checkpoint = saved_run(make_trainer, max_steps=1)
    command = Command(tmp_path / "it-ran")
    if part == "random.pt":
        torch.save({"torch": command}, checkpoint / part)
    elif part == "state/.metadata":
        (checkpoint / part).write_bytes(pickle.dumps(command))
    else:
        replace_moment(checkpoint, command)
    with pytest.raises(ConfigError, match=r"cannot read the checkpoint .*step-1"):
        make_trainer(max_steps=1).resume()
    assert not command.path.exists()


def test_a_checkpoint_of_an_earlier_version_is_refused_with_a_way_out(make_trainer: Any) -> None:
    checkpoint = saved_run(make_trainer, steps=0)
    (checkpoint / "state").rename(checkpoint / "state.pt")
    with pytest.raises(ConfigError, match=r"format of an earlier version .*`vf-rl export .*step-0"):
        make_trainer().resume()


def test_training_continues_while_a_checkpoint_is_written(make_trainer: Any) -> None:
    """It holds what was there when it was begun, whatever the policy became meanwhile."""
    trainer: RLTrainer = make_trainer(max_steps=2)
    trainer.step()
    weights = trainer.policy.weights
    before = weights.trainable_state()
    trainer._keeper.begin(trainer._progress(), best=False)
    for parameter in weights.trained:
        parameter.data.add_(1.0)
    trainer._keeper.wait()
    saved = stored(trainer.folder.checkpoints / "step-1")
    for name, value in before.items():
        assert torch.equal(saved[f"parameters/{name}"], value)
    adapter = load_file(trainer.folder.checkpoints / "step-1" / "model" / ADAPTER_WEIGHTS)
    assert max(float(each.max()) for each in adapter.values()) < 1.0


def test_what_is_in_a_checkpoints_place_is_not_taken_for_it(make_trainer: Any) -> None:
    trainer: RLTrainer = make_trainer()
    (trainer.folder.checkpoints / "step-0" / "model").mkdir(parents=True)  # half copied, say
    with pytest.raises(CheckpointError, match=r"step-0 could not be written: .*not empty"):
        trainer.save()
    assert names(trainer.folder.checkpoints) == {"step-0"}
