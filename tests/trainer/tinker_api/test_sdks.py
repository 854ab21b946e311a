"""The SDKs of the Tinker API, as they are on PyPI, against a server: what users do with them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.parts import TINKER_SDKS
from tests.trainer.tinker_api.api_client import running_api

HERE = Path(__file__).parent
SDKS = ("tinker", "mint")
KEYS = {"tinker": "tml-secret", "mint": "sk-secret"}

pytestmark = [pytest.mark.tinker, pytest.mark.slow, pytest.mark.gate]


def run(sdk: str, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run a program with an SDK's interpreter, away from this repository."""
    python = TINKER_SDKS / sdk / "bin/python"
    command = [str(python), "-W", "ignore", str(HERE / argv[0]), sdk, *argv[1:]]
    return subprocess.run(command, cwd="/", capture_output=True, text=True, env={}, timeout=280)


@pytest.mark.parametrize("sdk", SDKS)
def test_what_users_do_with_an_sdk(sdk: str, tmp_path: Path) -> None:
    with running_api(tmp_path, KEYS[sdk]) as api:
        finished = run(sdk, "sdk_program.py", str(api.http.base_url).rstrip("/"), KEYS[sdk])
        assert finished.returncode == 0, finished.stderr
        outcomes = json.loads(finished.stdout.splitlines()[-1])
        assert {name: text for name, text in outcomes.items() if text != "ok"} == {}
        # The client vanished, and the server serves others.
        assert api.model()


@pytest.mark.parametrize("sdk", SDKS)
def test_the_training_loop_of_the_documents_learns(sdk: str, tmp_path: Path) -> None:
    with running_api(tmp_path, max_requests=64) as api:
        finished = run(sdk, "seed_loop.py", str(api.http.base_url).rstrip("/"), "tiny")
    assert finished.returncode == 0, finished.stdout + finished.stderr
