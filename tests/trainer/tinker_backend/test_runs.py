"""Runs of `vf-rl` that train on a server of the Tinker API, through the SDK as it is on PyPI."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.parts import TINKER_SDKS
from tests.trainer.tinker_api.api_client import ApiClient, running_api

ROOT = Path(__file__).resolve().parents[3]
# One rollout at a time, so that a resumed run is equal to an unbroken one.
SETS: dict[str, Any] = {
    "trainer.backend": "tinker",
    "temperature": 1,
    "max_steps": 2,
    "batch_size": 4,
    "rollouts_per_example": 2,
    "max_concurrent": 1,
    "max_steps_off_policy": 0,
    "max_tokens": 8,
    "max_prompt_len": 192,
    "max_seq_len": 256,
    "eval_strategy": "no",
    "save_steps": 1,
}
# It counts turns in a file, and kills the run at the seventh: in step 2.
KILLER = """
import os
import random
import signal
from pathlib import Path

import vf


class Killer(vf.Environment):
    max_turns = 1
    rubric = vf.Rubric(outcome=lambda trace: random.Random(trace.seed).random())

    def __init__(self, max_operand):
        self.most = max_operand

    def tasks(self, split):
        return [vf.Task(f"{split}-{number}", f"Say {number}.") for number in range(self.most)]

    async def step(self, reply):
        turns = Path("turns")
        count = int(turns.read_text()) + 1
        turns.write_text(str(count))
        if count == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        return await super().step(reply)
"""

pytestmark = [
    *(pytest.mark.tinker, pytest.mark.slow, pytest.mark.gate),
    pytest.mark.timeout(1200),
]


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiClient]:
    with running_api(tmp_path / "served") as client:
        yield client


def begin(folder: Path, api: ApiClient, *argv: str, **sets: Any) -> subprocess.Popen[str]:
    """Start `vf-rl` with the SDK's interpreter."""
    url = str(api.http.base_url).rstrip("/")
    settings = {"trainer.tinker.base_url": url, **sets}
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    python = str(TINKER_SDKS / "tinker/bin/python")
    return subprocess.Popen(
        [python, "-m", "vf.trainer.commands.main", *argv, *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def metrics(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_run_that_was_killed_resumes_as_if_it_had_not_been(
    api: ApiClient, tmp_path: Path
) -> None:
    config, turns = str(ROOT / "configs/quickstart.toml"), tmp_path / "turns"
    (tmp_path / "killer.py").write_text(KILLER)
    sets = SETS | {"env.id": "./killer.py"}
    turns.write_text("1000")
    with begin(tmp_path, api, config, run_name="whole", **sets) as process:
        said, _ = process.communicate()
    assert process.returncode == 0, said
    assert "tokens sampled" in said
    turns.write_text("0")
    with begin(tmp_path, api, config, run_name="killed", **sets) as process:
        said, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL, said
    killed = tmp_path / "runs/killed"
    with begin(tmp_path, api, "--resume", str(killed)) as process:
        said, _ = process.communicate()
    assert process.returncode == 0, said
    whole, resumed = metrics(tmp_path / "runs/whole"), metrics(killed)
    assert [line["step"] for line in resumed] == [1, 2]
    for name in ("reward/mean", "loss", "grad_norm", "tokens/sampled"):
        ours, theirs = ([line.get(name) for line in lines] for lines in (resumed, whole))
        assert ours == pytest.approx(theirs, rel=1e-4), name
    assert all(line["tokens/trained"] for line in resumed)
    path = json.loads((killed / "checkpoints/step-2/tinker.json").read_text())["path"]
    assert api.post("weights_info", {"tinker_path": path})["lora_rank"] == 16


def test_what_the_server_does_not_serve_is_named(api: ApiClient, tmp_path: Path) -> None:
    config, sets = str(ROOT / "configs/quickstart.toml"), {"trainer.tinker.base_model": "other"}
    with begin(tmp_path, api, config, "--dry-run", **SETS, **sets) as process:
        said, _ = process.communicate()
    assert process.returncode == 2
    assert "'other' is not served" in said
