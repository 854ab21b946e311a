"""`vf-rl eval` as a process, and in this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import vf
from vf.trainer.commands.main import main

START = [sys.executable, "-m", "vf.trainer.commands.main", "eval"]


def environ(**more: str) -> dict[str, str]:
    """Return an environment in which a new process finds the library."""
    found = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    found.pop("OPENAI_API_KEY", None)
    return found | more


def start(*argv: str, cwd: Path, **more: str) -> subprocess.Popen[str]:
    """Start the command."""
    return subprocess.Popen(
        [*START, *argv],
        cwd=cwd,
        env=environ(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*argv: str, cwd: Path, **more: str) -> tuple[int, str, str]:
    """Run the command to completion."""
    process = start(*argv, cwd=cwd, **more)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def call(capsys: Any, *argv: str) -> tuple[int, str, str]:
    """Run the command in this process, which saves its start."""
    try:
        code = main(["eval", *argv])
    except SystemExit as error:  # argparse's way out
        code = int(error.code or 0)
    said = capsys.readouterr()
    return code, said.out, said.err


def results(folder: Path) -> dict[str, Any]:
    """Return the results of the folder's only model and environment."""
    (found,) = json.loads((folder / "results.json").read_text())["results"]
    assert isinstance(found, dict)
    return found


def traces(folder: Path) -> list[vf.Trace]:
    """Return all traces of a results folder."""
    files = sorted(folder.glob("*/*/traces.jsonl"))
    return [trace for file in files for trace in vf.TraceStore(file)]


def flat(nested: Any, where: str = "") -> dict[str, Any]:
    """Return nested results with one key each, as pytest.approx wants them."""
    if not isinstance(nested, dict):
        return {where: nested}
    return {k: v for name, each in nested.items() for k, v in flat(each, f"{where}/{name}").items()}
