"""`vf-rl sft`, as it is run."""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from tests.trainer.conftest import VfRl
from vf.trainer.commands.sft import main

TOML = """
model = "{model}"

[data]
traces = ["{traces}"]

[trainer.args]
output_dir = "{runs}"
max_steps = 4
batch_size = 8
max_seq_len = 512
use_lora = false
learning_rate = 5e-3
save_steps = 2
save_minutes = 0
"""


@pytest.fixture(autouse=True)
def _own_environ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture
def toml(tmp_path: Path, traces: Path, blank: Path) -> Path:
    path = tmp_path / "warm.toml"
    path.write_text(TOML.format(model=blank, traces=traces, runs=tmp_path / "runs"))
    return path


@pytest.mark.slow
def test_a_run_from_its_toml_to_a_model(
    toml: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(toml), "--set", "held_out=0.2"]) == 0
    run = tmp_path / "runs" / "warm-1"
    said = capsys.readouterr().out
    for part in (
        "48 read in 1 files, 48 kept",
        "0 traces as sampled; 48 rendered again, 48 without tokens",
        "38 sequences, ",
        "10 sequences, ",
        "all weights, learning rate 0.005, 4 steps of 8 sequences",
        "step     0  held-out loss ",
        "step     4  held-out loss ",
        f"vf-rl eval ENV -m {run / 'model'}",
    ):
        assert part in said
    assert "grad_norm" not in said  # what TRL would print of every step
    resolved = tomllib.loads((run / "config.toml").read_text())
    assert resolved["data"]["held_out"] == 0.2
    assert resolved["trainer"]["args"]["weight_decay"] == 0.0
    assert sorted(each.name for each in run.iterdir()) == [
        *("checkpoints", "config.toml", "data", "lock", "logs", "metrics.jsonl", "model")
    ]
    assert sorted(each.name for each in (run / "checkpoints").iterdir()) == [
        *("checkpoint-2", "checkpoint-4")
    ]
    further = f"vf-rl sft --resume {run} --set max_steps=8"
    before = (run / "config.toml").read_bytes()
    assert main(["--resume", str(run), "--set", "weight_decay=0.1"]) == 0
    assert capsys.readouterr().out == f"already finished: 4 steps; to go further: {further}\n"
    assert (run / "config.toml").read_bytes() == before
    assert main(["--resume", str(run), "--set", "max_steps=6"]) == 0
    said = capsys.readouterr().out
    assert "resumed after step 4" in said
    assert re.search(r"held-out loss, 6 steps|6 steps in ", said)
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").open()]
    assert steps == [0, 1, 2, 3, 4, 4, 5, 6, 6]
    assert tomllib.loads((run / "config.toml").read_text())["trainer"]["args"]["max_steps"] == 6


@pytest.mark.slow
def test_the_first_step_is_saved_by_the_clock(toml: Path, tmp_path: Path) -> None:
    quick = ["run_name=timed", "max_steps=2", "save_steps=50", "save_minutes=5"]
    assert main([str(toml), *(word for each in quick for word in ("--set", each))]) == 0
    saved = sorted(tmp_path.glob("runs/timed/checkpoints/checkpoint-*/complete"))
    assert saved[0].parent.name == "checkpoint-1"


def test_a_dry_run_writes_nothing(toml: Path, tmp_path: Path, vf_rl: VfRl) -> None:
    before = sorted(tmp_path.rglob("*"))
    code, out, _ = vf_rl("sft", toml, "--dry-run")
    assert code == 0
    assert "ready: nothing was written or trained" in out
    assert sorted(tmp_path.rglob("*")) == before


def test_a_context_that_the_model_does_not_have_is_refused(
    toml: Path, tmp_path: Path, vf_rl: VfRl
) -> None:
    code, _, err = vf_rl("sft", toml, "--set", "max_seq_len=4096")
    assert code == 2
    assert "more than the model's context of 1024" in err
    assert not (tmp_path / "runs").exists()


def test_traces_in_place_of_a_toml_are_refused(tmp_path: Path, vf_rl: VfRl) -> None:
    (tmp_path / "data.jsonl").write_text("{}\n")
    code, _, err = vf_rl("sft", tmp_path / "data.jsonl")
    assert code == 2
    assert "data.jsonl is not a TOML file. vf-rl sft reads one that names" in err


def test_what_a_run_learns_from_is_settled_when_it_begins(
    toml: Path, tmp_path: Path, vf_rl: VfRl
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text(toml.read_text())
    code, _, err = vf_rl("sft", "--resume", run, "--set", "min_reward=0.5")
    assert code == 2
    assert "[data] cannot be changed" in err
    code, _, err = vf_rl("sft", "--resume", run)
    assert code == 2
    assert "is not the folder of a `vf-rl sft` run, or has no data" in err


def test_without_trl_the_extra_is_named(
    toml: Path, monkeypatch: pytest.MonkeyPatch, vf_rl: VfRl
) -> None:
    find = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "trl" else find(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    code, _, err = vf_rl("sft", toml)
    assert code == 2
    assert "pip install 'vf-rl[train,trl]'" in err
