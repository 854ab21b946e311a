"""Evaluating without a model: what solves each task, and doing nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vf.evaluation.commands.eval import main


def mean(folder: Path) -> float:
    results = json.loads((folder / "results.json").read_text())
    return float(results["results"][0]["reward"]["mean"])


def test_the_oracle_solves_and_nop_does_nothing(tmp_path: Path) -> None:
    for agent in ("oracle", "nop"):
        folder = tmp_path / agent
        assert main(["calculator", "--agent", agent, "-n", "3", "-o", str(folder)]) == 0
    assert (mean(tmp_path / "oracle"), mean(tmp_path / "nop")) == (1.0, 0.0)


UNSOLVED = """
import vf

class Unsolved(vf.Environment):
    def tasks(self, split):
        return [vf.Task("a", "What?")]
"""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["calculator", "--agent", "oracle", "-m", "x"], "--model needs a model; --agent"),
        (["unsolved.py", "--agent", "oracle"], "knows no solution of task 'a'"),
    ],
)
def test_what_does_not_go_together_is_refused(
    arguments: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "unsolved.py").write_text(UNSOLVED)
    monkeypatch.chdir(tmp_path)
    assert main([*arguments, "-o", "x"]) == 2
    assert said in " ".join(capsys.readouterr().err.split())
