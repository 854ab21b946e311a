"""A run that was stopped resumes exactly as if it had not been."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import vf
from tests.trainer.saving.comparing import comparable
from tests.trainer.saving.test_checkpoint_keeper import saved_run
from tests.waiting import Clock
from vf.inference.embedded.contexts import Contexts
from vf.runtime.errors import ConfigError
from vf.trainer.rl_trainer import RLTrainer
from vf.trainer.run.run_folder import RunFolder

pytestmark = pytest.mark.slow

SETTINGS = {
    "max_steps": 5,
    "save_steps": 2,
    "lora_dropout": 0.1,  # the random states must be restored too
    "lr_scheduler_type": "linear",
    "eval_strategy": "steps",
    "eval_examples": 4,
    # Which requests share a forward pass is a matter of time, and decides the last digits of their
    # logits: one at a time, they do not vary.
    "max_concurrent": 1,
}


@pytest.fixture
def whole_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute each prompt whole: continuing a cached one gives other last digits.

    Which prompts are cached differs after a resume, for the cache is empty then.
    """
    monkeypatch.setattr(Contexts, "match", lambda self, *prompt: (None, 0))


def task_ids(folder: RunFolder, step: int) -> list[str]:
    return sorted(trace.task.id for trace in folder.step_traces(step))


def test_resumed_run_equals_the_unbroken_one(
    make_trainer: Any, whole_prompts: None, tmp_path: Path
) -> None:
    unbroken: RLTrainer = make_trainer("unbroken", **SETTINGS)
    unbroken.train()
    unbroken.close()

    # Stop in the middle of step 4, after the checkpoint of step 2.
    stopped: RLTrainer = make_trainer("stopped", **SETTINGS)
    stopped.args.max_steps = 3
    stopped.train()
    stopped.step_count += 1
    stopped.collector.open(4, version=3)
    list(stopped.collector.arriving(4))
    stopped.close()
    shutil.rmtree(stopped.folder.checkpoints / "step-3")

    resumed: RLTrainer = make_trainer("stopped", **SETTINGS)
    assert resumed.resume({"trainer.args.max_steps"}) == 2
    resumed.train()

    expected, got = comparable(unbroken.folder), comparable(resumed.folder)
    assert [line["step"] for line in got] == [0, 1, 2, 3, 4, 5]
    assert got == expected, "to the last bit"
    for step in range(1, 6):
        assert task_ids(resumed.folder, step) == task_ids(unbroken.folder, step)
    final = [run.policy.weights.trainable_state() for run in (unbroken, resumed)]
    assert all(torch.equal(final[0][name], final[1][name]) for name in final[0])
    # What the stopped run had done beyond its checkpoint is kept, apart.
    superseded = {path.name for path in (resumed.folder.traces / "superseded-1").iterdir()}
    assert superseded == {"step-000003.jsonl", "step-000004.jsonl", "eval-000003.jsonl"}


def test_a_run_without_a_checkpoint_begins_again(make_trainer: Any) -> None:
    first: RLTrainer = make_trainer(max_steps=2)
    first.step()
    first.close()
    again: RLTrainer = make_trainer(max_steps=2)
    assert again.resume() == 0
    again.train()
    assert [line["step"] for line in again.folder.read_metrics()] == [1, 2]
    assert len(list(again.folder.step_traces(1))) == 16
    assert (again.folder.traces / "superseded-1" / "step-000001.jsonl").exists()


def test_a_checkpoint_of_another_adapter_is_refused(make_trainer: Any) -> None:
    saved_run(make_trainer, steps=0, lora_rank=4)
    other: RLTrainer = make_trainer(lora_rank=8)
    with pytest.raises(ConfigError, match=r"lora_rank: 4 then, 8 now\nPut them back"):
        other.resume()
    with pytest.raises(ConfigError, match=r"adapter: .* is \[4, 432\] there and \[8, 432\] here"):
        other.resume(allow_changes=True)


def test_optimizer_settings_that_were_changed_act_after_a_resume(make_trainer: Any) -> None:
    schedule: dict[str, Any] = {"lr_scheduler_type": "linear", "max_steps": 4}
    saved_run(make_trainer, **schedule)
    new: dict[str, Any] = {"betas": [0.5, 0.75], "eps": 1e-4, "weight_decay": 0.25}
    resumed: RLTrainer = make_trainer(**schedule, **new, learning_rate=1e-3)
    names = [*new, "learning_rate"]
    assert resumed.resume({f"trainer.args.{name}" for name in names}) == 1
    assert resumed.policy.learning_rate == 1e-3 * 3 / 4
    used: list[dict[str, Any]] = []
    resumed.policy.optimizer.register_step_pre_hook(
        lambda optimizer, *_: used.append({**optimizer.param_groups[0]})
    )
    resumed.step()
    [group] = used
    assert {name: group[name] for name in (*new, "lr")} == {
        "betas": (0.5, 0.75),
        "eps": 1e-4,
        "weight_decay": 0.25,
        "lr": 1e-3 * 3 / 4,
    }
    assert all(float(entry["step"]) == 2 for entry in resumed.policy.optimizer.state.values())


def test_traces_of_a_run_can_be_read_back(make_trainer: Any) -> None:
    trainer: RLTrainer = make_trainer()
    metrics = trainer.step()
    traces = list(vf.TraceStore(trainer.folder.traces / "step-000001.jsonl"))
    assert len(traces) == 16
    rewards = [trace.reward for trace in traces if trace.reward is not None]
    assert sum(rewards) / len(rewards) == pytest.approx(metrics["reward/mean"])
    versions = {v for trace in traces for b in trace.branches for v in b.weight_version}
    assert versions == {-1, 0}
    trainer.step()
    second = next(iter(vf.TraceStore(trainer.folder.traces / "step-000002.jsonl")))
    assert set(second.branches[0].weight_version) == {-1, 1}


def test_a_file_of_the_users_among_the_traces_stays_where_it_is(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    for name in ("step-000002", "step-000002-best", "notes", "eval-000000", "eval-000002"):
        (folder.traces / f"{name}.jsonl").touch()
    folder.rewind(1)
    left = {path.stem for path in folder.traces.glob("*.jsonl")}
    assert left == {"step-000002-best", "notes", "eval-000000"}


def test_damaged_metrics_are_put_aside_and_no_other_is_lost(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    junk = [b"\xff\x00{", b'{"step": 1', b"[]", b"{}", b'{"step": 1}{"step": 2}', b"[" * 9999]
    for step in range(3):
        folder.append_metrics({"step": step})
    first, *later = folder.metrics.read_bytes().splitlines(keepends=True)
    lines = [first, *(line + b"\n" for line in junk), b"\r\n", *later, b'{"step": 3']
    folder.metrics.write_bytes(b"".join(lines))
    folder.rewind(1)
    assert [line["step"] for line in folder.read_metrics()] == [0, 1]
    aside = folder.path / "metrics.damaged"
    assert aside.read_bytes().splitlines() == junk
    said = f"{folder.metrics}: lines 2, 3, 4, 5, 6, 7 cannot be read, and are put aside in {aside}"
    assert said in folder.trainer_log.read_text()
    folder.rewind(1)
    assert aside.read_bytes().splitlines() == junk


def test_a_summary_takes_no_evaluation_for_one_before_or_after_training(
    make_trainer: Any,
) -> None:
    trainer: RLTrainer = make_trainer()
    for step, reward in ((2, 0.25), (3, 0.5)):
        trainer.folder.append_metrics({"step": step, "eval/reward/mean": reward})
    trainer.folder.append_metrics({"step": 4, "reward/mean": 0.5})
    trainer.step_count = 4
    assert trainer.summary().eval_before is None
    assert trainer.summary().eval_after is None
    trainer.step_count = 3
    assert trainer.summary().eval_after == 0.5


def test_the_step_after_a_resume_does_not_answer_for_it(
    make_trainer: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer: RLTrainer = make_trainer()
    trainer.save()
    restore = trainer.collector.restore

    def restore_slowly(*args: Any) -> None:
        clock.jump(1e6)
        restore(*args)

    monkeypatch.setattr(trainer.collector, "restore", restore_slowly)
    trainer.resume()
    assert trainer._clock.lap()["total"] < 1e6
