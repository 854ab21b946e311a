"""The limit of open files: raised where it can be, and shared out where it cannot."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

PRINT = """
from vf.runtime.open_files import connections, limit, raise_limit, sandboxes
before = connections()
raise_limit()
print(limit(), before, connections(), sandboxes())
"""
# An environment that ends the command that makes it, and says under which limit.
AUTHOR = """
import resource
import vf
class Limits(vf.Environment):
    def __init__(self):
        raise vf.ConfigError(f"limits: {resource.getrlimit(resource.RLIMIT_NOFILE)}")
"""
TOML = """
model = "tiny"
[env]
id = "limits.py"
[trainer.args]
max_steps = 1
max_seq_len = 512
max_prompt_len = 256
"""


def run(command: list[str], soft: int, hard: int, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)),
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [
        (256, 4096, "4096 64 1984 992\n"),
        (256, 256, "256 64 64 32\n"),
        (64, 64, "64 8 8 4\n"),
    ],
)
def test_the_soft_limit_is_raised_to_the_hard_one(
    soft: int, hard: int, expected: str, tmp_path: Path
) -> None:
    assert run(["-c", PRINT], soft, hard, tmp_path) == expected


@pytest.mark.parametrize(
    "words",
    [
        ["eval", "limits.py", "-m", "tiny"],
        pytest.param(["run.toml"], marks=pytest.mark.slow),  # it loads torch first
    ],
)
def test_commands_that_open_many_connections_raise_it(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "limits.py").write_text(AUTHOR)
    (tmp_path / "run.toml").write_text(TOML)
    said = run(["-m", "vf.trainer.commands.main", *words], 1024, 2048, tmp_path)
    assert "limits: (2048, 2048)" in said
