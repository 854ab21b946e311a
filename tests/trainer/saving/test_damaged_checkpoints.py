"""A damaged checkpoint is named with its file, and the run can resume from the one before it."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.saving.test_checkpoint_keeper import make_checkpoints
from vf.runtime.errors import ConfigError
from vf.trainer.rl_trainer import RLTrainer
from vf.trainer.saving.checkpoint import read_progress
from vf.trainer.saving.checkpoint_files import (
    damaged,
    finished,
    latest_checkpoint,
    named_checkpoint,
    read_saved,
    set_aside_later,
)


def test_one_that_was_never_finished_is_passed_over(tmp_path: Path) -> None:
    make_checkpoints(tmp_path, [2, 4])
    (tmp_path / "step-4" / "progress.json").write_text("")
    (tmp_path / "step-6").mkdir()
    (tmp_path / ".writing-7").mkdir()
    assert latest_checkpoint(tmp_path) == tmp_path / "step-2"


def test_the_file_and_the_way_out_are_named(tmp_path: Path) -> None:
    make_checkpoints(tmp_path, [2, 4, 10])
    (tmp_path / "step-4" / "progress.json").write_text('{"step": 4, ')
    with pytest.raises(
        ConfigError,
        match=r"step-4: progress\.json: .*; resume from the one before it with --from step-2",
    ):
        read_saved(tmp_path / "step-4")
    (tmp_path / "step-2" / "progress.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"step-2: progress\.json: .*can't decode") as error:
        read_saved(tmp_path / "step-2")
    assert "--from" not in str(error.value), "there is none before it"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("null", "it is not an object"),
        ("[]", "it is not an object"),
        ("[" * 100_000, "nested"),
        ('{"step": "4"}', "step is '4'"),
        ('{"optimizer_steps": null}', "optimizer_steps is None"),
        ('{"alarms": [1]}', r"alarms is \[1\]"),
    ],
)
def test_progress_of_another_shape_is_damage(tmp_path: Path, text: str, why: str) -> None:
    make_checkpoints(tmp_path, [2, 4])
    (tmp_path / "step-4" / "progress.json").write_text(text)
    with pytest.raises(ConfigError, match=rf"step-4: progress\.json: .*{why}.* --from step-2"):
        read_saved(tmp_path / "step-4")


@pytest.mark.parametrize("text", [None, b"", b'{"half": '])
def test_rollouts_that_are_gone_are_damage(tmp_path: Path, text: bytes | None) -> None:
    make_checkpoints(tmp_path, [2, 4])
    queue = {"cursor": {}, "steps": [], "traces": 1}
    saved = json.dumps({"step": 4, "seconds": 1.0, "queue": queue})
    (tmp_path / "step-4" / "progress.json").write_text(saved)
    if text is not None:
        (tmp_path / "step-4" / "rollouts.jsonl").write_bytes(text)
    with pytest.raises(ConfigError, match=r"step-4: rollouts\.jsonl: .*it .* --from step-2"):
        read_progress(tmp_path / "step-4")


def test_nobody_is_told_to_run_what_is_in_a_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "random.pt").write_bytes(b"\0" * 100)
    with pytest.raises(pickle.UnpicklingError) as raised:
        torch.load(tmp_path / "random.pt", weights_only=True)
    told = str(damaged(tmp_path, "random.pt", raised.value))
    assert told == f"cannot read the checkpoint {tmp_path}: random.pt: it is damaged"


def test_a_checkpoint_is_named_by_its_step(tmp_path: Path) -> None:
    make_checkpoints(tmp_path, [2, 10])
    assert named_checkpoint(tmp_path, "step-2") == named_checkpoint(tmp_path, "2")
    with pytest.raises(ConfigError, match=r"--from step-3: .* there are: step-2, step-10"):
        named_checkpoint(tmp_path, "step-3")


def test_later_ones_are_kept_under_other_names(tmp_path: Path) -> None:
    make_checkpoints(tmp_path, [2, 4])
    (tmp_path / "step-6").mkdir()
    (tmp_path / "step-6-copy").mkdir()
    (tmp_path / "best").symlink_to("step-4")
    set_aside_later(tmp_path, 2)
    assert {path.name for path in tmp_path.iterdir()} == {
        "step-2",
        "step-6-copy",
        "superseded-1-step-4",
        "superseded-2-step-6",
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "why"),
    [
        ("state/.metadata", ".*cannot be read"),
        ("state/__0_0.distcp", r"."),
        ("random.pt", "."),
        ("random.pt", "it is empty"),
        ("random.pt", "it is missing"),
        ("progress.json", "."),
        ("rollouts.jsonl", ".*line 1: not a trace"),
    ],
)
def test_a_run_resumes_from_the_one_before(make_trainer: Any, file: str, why: str) -> None:
    first: RLTrainer = make_trainer(max_steps=2, save_steps=1)
    first.train()
    first.close()
    damaged = first.folder.checkpoints / "step-2" / file
    if why == "it is missing":
        damaged.unlink()
    else:
        torn = b"[]\n" if file == "rollouts.jsonl" else damaged.read_bytes()[:20]
        damaged.write_bytes(b"" if why == "it is empty" else torn)
    with pytest.raises(ConfigError, match=rf"step-2: {file}: {why}.*--from step-1"):
        make_trainer(max_steps=2, save_steps=1).resume()
    again: RLTrainer = make_trainer(max_steps=2, save_steps=1)
    assert again.resume(checkpoint="step-1") == 1
    again.train()
    assert [line["step"] for line in again.folder.read_metrics()] == [1, 2]
    assert finished(again.folder, again.args) == 2
    assert (again.folder.checkpoints / "superseded-1-step-2").is_dir()
