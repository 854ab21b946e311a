"""`vf-rl --resume`: which settings a run continues with, and when there is nothing to do."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, cast

import pytest

from vf.trainer.commands import on_cluster, train
from vf.trainer.commands.main import main
from vf.trainer.rl_trainer import RLTrainer
from vf.trainer.run.run_folder import RunFolder
from vf.trainer.saving.checkpoint_files import finished
from vf.trainer.saving.checkpoint_keeper import Keeper
from vf.trainer.settings.load_config import load_config
from vf.trainer.settings.loop_args import LoopArgs

Capsys = pytest.CaptureFixture[str]


@pytest.fixture
def run(config: Path, capsys: Capsys) -> RunFolder:
    """A run that has finished its two steps."""
    assert main([str(config), "--set", "run_name=mine"]) == 0
    capsys.readouterr()
    return RunFolder(config.parent / "runs" / "mine")


def content(run: RunFolder) -> dict[str, bytes]:
    """What a run's folder holds, without its logs."""
    kept = (run.config, run.metrics, *run.traces.rglob("*"), *run.checkpoints.rglob("*"))
    return {str(file): file.read_bytes() for file in kept if file.is_file()}


def resume(run: RunFolder, *sets: str) -> int:
    return main(["--resume", str(run.path), *(word for each in sets for word in ("--set", each))])


def resume_and_kill(run: RunFolder, monkeypatch: pytest.MonkeyPatch, *sets: str) -> None:
    """Resume, and end in the next step as by SIGKILL, which leaves no time to save it."""

    def killed(trainer: RLTrainer) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RLTrainer, "step", killed)
        patch.setattr(Keeper, "rescue", lambda *args: None)
        assert resume(run, *sets) == 130


@pytest.mark.slow
def test_what_set_changed_holds_although_the_run_is_killed_before_its_next_checkpoint(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    resume_and_kill(run, monkeypatch, "max_steps=4")
    resume_and_kill(run, monkeypatch)
    resume_and_kill(run, monkeypatch, "max_steps=3", "learning_rate=1e-4", "save_steps=1")
    capsys.readouterr()
    assert resume(run) == 0
    said = capsys.readouterr().out
    assert "resumed after step 2" in said
    assert "trainer.args.max_steps: 2 then, 3 now" in said.replace("\n", " ")
    lines = run.read_metrics()
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    assert lines[3]["learning_rate"] == 1e-4
    assert "eval/reward/mean" in lines[3]
    saved, _ = load_config(run.checkpoints / "step-3" / "config.toml")
    assert saved == load_config(run.config)[0]


@pytest.mark.slow
def test_a_finished_run_says_so_and_is_left_as_it_is(run: RunFolder, capsys: Capsys) -> None:
    before = content(run)
    further = f"to go further: vf-rl --resume {run.path} --set max_steps=4\n"
    assert resume(run) == 0
    assert capsys.readouterr().out == f"already finished: 2 of 2 steps; {further}"
    assert resume(run, "learning_rate=1e-4") == 0
    unchanged = "already finished: 2 of 2 steps. Its settings were not changed; "
    assert capsys.readouterr().out == unchanged + further
    assert resume(run, "max_steps=1") == 0
    assert "already finished: 2 of 1 steps" in capsys.readouterr().out
    assert content(run) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("max_step=4", "Did you mean 'max_steps'"),
        ("lora_rank=4", "another model or adapter"),
    ],
)
def test_a_setting_that_is_refused_changes_nothing(
    run: RunFolder, capsys: Capsys, setting: str, said: str
) -> None:
    before = content(run)
    assert resume(run, "max_steps=3", setting) == 2
    assert said in capsys.readouterr().err
    assert content(run) == before


@pytest.mark.parametrize(
    ("step", "line", "done"),
    [
        (3, {"eval/reward/mean": 0.5}, None),
        (4, {"eval/reward/mean": 0.5}, 4),
        (4, {"reward/mean": 0.5}, None),  # killed in the evaluation after the last step
        (6, {"reward/mean": 0.5}, 6),
    ],
)
def test_a_run_is_finished_once_its_last_evaluation_is(
    tmp_path: Path, step: int, line: dict[str, float], done: int | None
) -> None:
    folder = RunFolder(tmp_path)
    checkpoint = folder.checkpoints / f"step-{step}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "progress.json").write_text(json.dumps({"step": step}))
    folder.append_metrics({"step": step} | line)
    assert finished(folder, LoopArgs(max_steps=4)) == done


def test_tmux_and_a_cluster_go_back_to_the_checkpoint_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the error of a damaged checkpoint offers."""
    opened: list[list[str]] = []
    monkeypatch.setattr(train, "open_session", lambda folder, command: opened.append(command))
    monkeypatch.setattr(train, "attach", lambda session: 0)
    args = argparse.Namespace(
        resume=tmp_path, checkpoint="step-1", set=["max_steps=2"], allow_changes=False
    )
    train._open_tmux(RunFolder(tmp_path), args)
    given = ["--resume", str(tmp_path), "--from", "step-1"]
    assert opened[0][-4:] == given
    with on_cluster._arguments(args, cast(Any, None)) as argv:
        assert argv == [*given[:2], "--set", "max_steps=2", *given[2:]]
