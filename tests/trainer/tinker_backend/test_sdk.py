"""The gradients of a step on a server are those of this machine, whatever the loss."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.parts import TINKER_SDKS
from tests.trainer.tinker_api.api_client import running_api

ROOT = Path(__file__).resolve().parents[3]

pytestmark = [pytest.mark.tinker, pytest.mark.slow, pytest.mark.gate]


def test_they_are_equal_to_rounding_for_every_loss(tmp_path: Path) -> None:
    served, scratch = tmp_path / "served", tmp_path / "scratch"
    scratch.mkdir()
    program = Path(__file__).with_name("sdk_program.py")
    python = TINKER_SDKS / "tinker/bin/python"
    with running_api(served) as api:
        url = str(api.http.base_url).rstrip("/")
        command = [str(python), "-W", "ignore", str(program), url, str(served), str(scratch)]
        environ = os.environ | {"PYTHONPATH": str(ROOT)}
        finished = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, env=environ, timeout=280
        )
    assert finished.returncode == 0, finished.stderr
    outcomes = json.loads(finished.stdout.splitlines()[-1])
    assert outcomes.pop("learner") < 1e-3
    assert len(outcomes) == 12
    assert {name: each for name, each in outcomes.items() if not each < 1e-5} == {}
