"""tinker-cookbook, as it is on PyPI, trains in a vf-rl environment against a vf-rl server."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.parts import TINKER_SDKS
from tests.trainer.tinker_api.api_client import running_api
from vf.inference.model_files import resolve_model

ROOT = Path(__file__).resolve().parents[3]

pytestmark = [pytest.mark.tinker, pytest.mark.slow, pytest.mark.gate]


def test_it_trains_and_resumes(tmp_path: Path) -> None:
    program = Path(__file__).with_name("train_program.py")
    python, log = TINKER_SDKS / "cookbook/bin/python", tmp_path / "log"
    with running_api(tmp_path / "served", max_requests=16) as api:
        url = str(api.http.base_url).rstrip("/")
        for steps in ("1", "2"):
            command = [str(python), "-W", "ignore", str(program), url, resolve_model("tiny")]
            finished = subprocess.run(
                [*command, str(log), steps],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                timeout=280,
            )
            assert finished.returncode == 0, finished.stderr[-4000:]
    lines = [json.loads(line) for line in (log / "metrics.jsonl").read_text().splitlines()]
    named = {name for line in lines for name in line}
    ours = {"turns", "reward/outcome", "stop/completed"}
    assert {each for each in ours if not any(name.endswith(each) for name in named)} == set()
    assert any("test" in name and "reward" in name for name in named)
    assert max(line.get("progress/batch", 0) for line in lines) == 1
