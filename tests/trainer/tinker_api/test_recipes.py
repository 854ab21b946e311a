"""Recipes of tinker-cookbook, unchanged and offline, against a server of the Tinker API."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import datasets
import pytest

from tests.parts import TINKER_SDKS
from tests.trainer.tinker_api.api_client import running_api
from vf.inference.model_files import resolve_model

pytestmark = [pytest.mark.tinker, pytest.mark.slow]

MODEL = "Qwen/Qwen3-4B-Instruct-2507"  # a name that the recipes know; here, a folder
CONTEXT = 4096
CONFIG = """---
configs:
- config_name: main
  data_files:
  - {split: train, path: train.parquet}
  - {split: test, path: test.parquet}
---
"""


def write_dataset(folder: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows where `datasets.load_dataset` looks for a name, relative to a folder."""
    folder.mkdir(parents=True)
    (folder / "README.md").write_text(CONFIG)
    for split in ("train", "test"):
        datasets.Dataset.from_list(rows).to_parquet(folder / f"{split}.parquet")


def sum_of(index: int) -> tuple[str, str]:
    """Return a question and its answer."""
    return f"What is {index % 5} + {index % 3}?", str(index % 5 + index % 3)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with the model and the datasets that recipes ask the hub for."""
    model = tmp_path / MODEL
    shutil.copytree(resolve_model("tiny"), model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": CONTEXT}))
    pairs = [sum_of(index) for index in range(120)]
    said = [[{"role": "user", "content": q}, {"role": "assistant", "content": a}] for q, a in pairs]
    write_dataset(tmp_path / "HuggingFaceH4/no_robots", [{"messages": each} for each in said])
    write_dataset(
        tmp_path / "openai/gsm8k", [{"question": q, "answer": f"#### {a}"} for q, a in pairs]
    )
    return tmp_path


def run(place: Path, url: str, recipe: str, **settings: Any) -> list[dict[str, Any]]:
    """Run a recipe, and return the metrics that its log has then."""
    log = place / "log"
    words = [f"{name}={value}" for name, value in settings.items()]
    python = str(TINKER_SDKS / "cookbook/bin/python")
    command = [python, "-W", "ignore", "-m", f"tinker_cookbook.recipes.{recipe}"]
    finished = subprocess.run(
        [*command, f"model_name={MODEL}", f"log_path={log}", *words],
        cwd=place,
        env=os.environ | {"TINKER_BASE_URL": url, "TINKER_API_KEY": "tml-x", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert finished.returncode == 0, finished.stderr[-4000:]
    return [json.loads(line) for line in (log / "metrics.jsonl").read_text().splitlines()]


def test_the_plain_supervised_loop_learns_and_resumes_from_a_checkpoint(place: Path) -> None:
    settings = {"batch_size": 8, "learning_rate": 0.01, "save_every": 4}
    with running_api(place / "served", name=MODEL, max_seq_len=CONTEXT) as api:
        url = str(api.http.base_url).rstrip("/")
        first = run(place, url, "sl_loop", max_steps=7, **settings)
        checkpoints = place / "log/checkpoints.jsonl"
        lines = checkpoints.read_text().splitlines(keepends=True)
        checkpoints.write_text("".join(lines[:-1]))  # as though it had been killed after step 6
        both = run(place, url, "sl_loop", max_steps=9, **settings)
    losses = [line["train_mean_nll"] for line in first]
    assert losses[-1] < losses[0] / 2
    again = [line for line in both[len(first) :] if "train_mean_nll" in line]
    assert [line["step"] for line in again] == [4, 5, 6, 7, 8]
    assert [line["train_mean_nll"] for line in again[:3]] == losses[4:], "to the last bit"


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        (
            "math_rl.train",
            {
                "env": "arithmetic",
                "renderer_name": "qwen3_instruct",
                "groups_per_batch": 2,
                "loss_fn": "importance_sampling",
                "behavior_if_log_dir_exists": "resume",
            },
        ),
        (
            "multiplayer_rl.guess_number.train",
            {
                "renderer_name": "qwen3_instruct",
                "batch_size": 2,
                "group_size": 2,
                "max_tokens": 8,
                "eval_every": 0,
                "save_every": 1,
                "behavior_if_log_dir_exists": "resume",
            },
        ),
    ],
)
def test_reinforcement_learning_runs_and_resumes(
    recipe: str, settings: dict[str, Any], place: Path
) -> None:
    with running_api(place / "served", name=MODEL, max_seq_len=CONTEXT) as api:
        url = str(api.http.base_url).rstrip("/")
        for steps in (1, 2):
            lines = run(place, url, recipe, max_steps=steps, **settings)
    trained = [line for line in lines if "env/all/reward/total" in line]
    assert [line["progress/batch"] for line in trained] == [0, 1]


def test_the_plain_loop_of_reinforcement_learning_runs(place: Path) -> None:
    settings = {"batch_size": 2, "group_size": 2, "max_tokens": 8, "loss_fn": "importance_sampling"}
    with running_api(place / "served", name=MODEL, max_seq_len=CONTEXT) as api:
        url = str(api.http.base_url).rstrip("/")
        lines = run(place, url, "rl_loop", max_steps=2, save_every=1, **settings)
    assert [line["step"] for line in lines] == [0, 1]
