"""Results as tables, at the widths that terminals have."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import vf
from tests.evaluation.commands import call
from tests.evaluation.stand_in import MODEL, standing
from vf.evaluation.compare import Comparison, Difference
from vf.evaluation.estimators import Estimate
from vf.evaluation.result_table import print_comparison, print_results
from vf.evaluation.tally import Summary, Tally
from vf.traces.trace import Score

WIDTHS = (80, 120, 160, 200)
LONG = "runs/a-run-that-has-a-long-name-because-it-says-what-differs/checkpoints/step-30/model"


def summary(model: str = "tiny") -> Summary:
    tally = Tally("calculator", model, 4, 4)
    for number in range(16):
        trace = vf.Trace("calculator", vf.Task(str(number // 4), "p"), seed=number)
        solved = float(number % 3 == 0)
        trace.score = Score(reward=solved, outcome=solved)
        trace.score.metrics = {"answered": float(number != 5), "calls": float(number)}
        tally.add(trace)
    return tally.summary()


def shown(width: int, *models: str) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    print_results([summary(model) for model in models], console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("model", ["tiny", LONG])
@pytest.mark.parametrize("width", WIDTHS)
def test_no_number_and_no_name_is_cut(width: int, model: str) -> None:
    said = shown(width, "tiny", model)
    assert "…" not in said
    assert model in said.replace("\n", "")
    assert said.count("0.375 [0.184, 0.615]") >= 2
    assert said.count("37.5% [18.4%, 61.5%]") >= 2
    assert max(map(len, said.replace(model, "").splitlines())) <= width


def test_below_120_columns_the_headline_numbers_stand_below_each_other() -> None:
    assert "  reward     0.375 [0.184, 0.615]\n  success    37.5% [18.4%, 61.5%]" in shown(
        80, "tiny"
    )
    assert "┃ environment ┃ model ┃ reward " in shown(120, "tiny")


@pytest.mark.parametrize("width", WIDTHS)
def test_a_comparison_shows_both_names_whole(width: int) -> None:
    rows = {"reward": Difference(0.25, 0.75, Estimate(0.5, 0.25, 0.75, 20))}
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    print_comparison([Comparison("calculator", f"old{LONG}", LONG, rows, [])], console)
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    assert f"old{LONG}" in said.replace("\n", "")
    assert LONG in said.replace(f"old{LONG}", "")
    assert "0.500 [0.250, 0.750] *" in said
    assert "…" not in said


def test_rollouts_without_a_reward_are_counted_where_there_are_some() -> None:
    assert "got no reward" not in shown(120, "tiny")
    counted = Console(file=io.StringIO(), width=120)
    print_results([replace(summary(), unscored=2)], counted)
    assert isinstance(counted.file, io.StringIO)
    assert "2 got no reward from the rubric" in counted.file.getvalue()


def test_the_interval_of_a_share_never_leaves_0_to_1() -> None:
    components = summary().components
    answered, calls = components["metric/answered"], components["metric/calls"]
    assert answered.high is not None
    assert answered.high <= 1.0
    assert answered.low is not None
    assert 0.0 <= answered.low < answered.mean < 1.0
    assert calls.high is not None
    assert calls.high > calls.mean > 1.0  # a count is no share


def test_more_tasks_than_there_are_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "few_of_test.py"
    file.write_text(
        "import vf\n\n\nclass Few(vf.Environment):\n"
        "    rubric = vf.Rubric(lambda trace: 1.0)\n\n"
        "    def tasks(self, split):\n"
        "        return [vf.Task(f'{split}-{n}', str(n)) for n in range(3)]\n"
    )
    with standing() as (url, _):
        argv = [str(file), "-m", MODEL, "-b", url, "-o", str(tmp_path / "out"), "-n"]
        for count, said in (("5", True), ("3", False)):
            code, _, err = call(capsys, *argv, count)
            assert code == 0
            few = "few_of_test has only 3 tasks in its eval split, of the 5 asked for"
            assert (few in err) == said
