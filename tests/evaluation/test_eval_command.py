"""`vf-rl eval --rescore`, as it is run."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

import vf
from tests.evaluation.commands import call

RUBRICS = """
import vf
strict = vf.Rubric(lambda trace: float(trace.reply == "Answer: 5"))
def partial(credit=0.5):
    return vf.Rubric(lambda trace: credit)
def fails(trace):
    raise KeyError("gold")
broken = vf.Rubric(fails)
silent = vf.Rubric(lambda trace: None)
number = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two files of real rollouts: two right answers, a wrong one and a failed rollout."""
    environment = vf.make("calculator")
    task = vf.Task("2 + 3", "Compute 2 + 3.", answer=5, info={"operations": 1})
    scripts = [["Answer: 5"], ["Answer: 5"], ["Answer: 4"], []]
    for index, script in enumerate(scripts):
        model = vf.ScriptedModel([*script])
        with vf.TraceStore(tmp_path / "traces" / f"{index // 2}.jsonl") as store:
            store.append(asyncio.run(vf.rollout(environment, task, model)))
    (tmp_path / "my_rubrics_of_test.py").write_text(RUBRICS)
    monkeypatch.chdir(tmp_path)
    sys.modules.pop("my_rubrics_of_test", None)
    return tmp_path


def run(*argv: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    return call(capsys, *argv)


def test_a_folder_is_scored_by_an_environments_rubric(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run("--rescore", "traces", "--rubric", "calculator", capsys=capsys)
    assert code == 0
    assert "4 traces; failed rollouts left unchanged: 1" in out
    assert "reward 0.6667 → 0.6667, 0 changed" in out


def test_another_rubric_is_loaded_from_here_and_the_traces_are_written(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--rescore", "traces", "--output", "new/scored.jsonl"]
    arguments += ["--rubric", "my_rubrics_of_test:partial", "--args", '{"credit": 0.25}']
    code, out, _ = run(*arguments, capsys=capsys)
    assert code == 0
    assert "reward 0.6667 → 0.2500, 3 changed" in out
    rewards = [trace.reward for trace in vf.TraceStore(folder / "new" / "scored.jsonl")]
    assert rewards == [0.25, 0.25, 0.25, None]
    code, _, err = run(*arguments, capsys=capsys)
    assert code == 2
    assert "scored.jsonl exists and is never overwritten" in err


def test_what_cannot_be_scored_is_counted_and_exits_with_1(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "my_rubrics_of_test"
    code, out, _ = run("--rescore", "traces/0.jsonl", "--rubric", f"{name}:broken", capsys=capsys)
    assert code == 1
    assert "2 could not be scored; the first: 'fails' raised KeyError: 'gold'" in out
    code, out, _ = run("--rescore", "traces/0.jsonl", "--rubric", f"{name}:silent", capsys=capsys)
    assert code == 0
    assert "reward 1.0000 → (none), 2 changed" in out
    assert "2 cannot be scored by this rubric" in out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "name an environment or a TOML, or --compare, --validate or --rescore"),
        (["--rescore", "traces"], "--rescore and --rubric go together"),
        (["--validate", "x", "--output", "y"], "--output belongs to an evaluation or --rescore"),
        (
            ["--rescore", "x", "--rubric", "y", "--json"],
            "--json belongs to an evaluation or --compare or --validate",
        ),
        (["--validate", "x", "-m", "y"], "--model belongs to an evaluation"),
        (["calculator", "--rescore", "x", "--rubric", "y"], "cannot be combined"),
        (["calculator", "-m", "tiny", "--allow", "solvable"], "--allow belongs to --validate"),
        (["--rescore", "traces", "--rubric", "calculater"], "Did you mean 'calculator'"),
        (["--rescore", "traces", "--rubric", "none_such:x"], "cannot load 'none_such:x'"),
        (["--rescore", "traces", "--rubric", "my_rubrics_of_test:number"], "is a int, not a"),
        (["--rescore", "traces", "--rubric", "my_rubrics_of_test:partial", "--args", "3"], "JSON"),
        (
            ["--rescore", "traces", "--rubric", "my_rubrics_of_test:strict", "--args", '{"a": 1}'],
            "is already a rubric and takes no --args",
        ),
        (
            ["--rescore", "traces", "--rubric", "my_rubrics_of_test:partial", "--args", '{"a": 1}'],
            "cannot be called: partial() got an unexpected keyword argument 'a'",
        ),
    ],
)
def test_bad_usage_exits_with_2_and_says_what_is_wrong(
    folder: Path, capsys: pytest.CaptureFixture[str], argv: list[str], said: str
) -> None:
    code, _, err = run(*argv, capsys=capsys)
    assert code == 2
    assert said in err


def test_the_command_runs_as_a_process_and_loads_no_torch(folder: Path) -> None:
    code = (
        "import sys; from vf.trainer.commands.main import main; "
        "code = main(['eval', *sys.argv[1:]]); sys.exit(code or 'torch' in sys.modules)"
    )
    arguments = ["--rescore", "traces", "--rubric", "my_rubrics_of_test:strict"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    assert "reward 0.6667 → 0.6667" in done.stdout
