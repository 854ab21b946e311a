"""`vf-rl eval --validate ENV`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import vf
from tests.evaluation.validation import faulty
from vf.environments import registry
from vf.evaluation.commands.eval import main


@pytest.fixture
def leaky() -> Iterator[str]:
    vf.register("leaky-sums", lambda: faulty.Sums(prompt="{a} + {b} is {answer}. [sic] Answer:"))
    yield "leaky-sums"
    del registry._registered["leaky-sums"]


def test_a_good_environment_exits_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--validate", "calculator"]) == 0
    printed = capsys.readouterr().out
    assert "calculator passed" in printed
    assert "overwrite-tests" in printed


@pytest.mark.usefixtures("containers")
def test_one_that_runs_code_passes_in_containers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--validate", "math-python", "--tasks", "2"]) == 0
    printed = capsys.readouterr().out
    assert "math-python passed" in printed
    assert "no code of the agents ran on this machine" in printed


def test_a_bad_one_exits_with_1_and_says_what_to_do(
    leaky: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--validate", leaky, "--tasks", "4"]) == 1
    printed = capsys.readouterr().out
    assert "leaky-sums FAILED: leaks" in printed
    assert "keep task.answer out of the prompt" in printed


def test_json_is_for_machines(leaky: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--validate", leaky, "--json", "--tasks", "3"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["environment"], found["tasks"], found["passed"]) == ("leaky-sums", 3, False)
    assert [f["check"] for f in found["findings"] if f["status"] == "fail"] == ["leaks"]
    assert {agent["name"]: agent["mean"] for agent in found["agents"]}["oracle"] == 1.0


def test_arguments_reach_the_environment(capsys: pytest.CaptureFixture[str]) -> None:
    # Far too few guesses: bisection, which is the oracle, usually fails.
    args = json.dumps({"max_guesses": 1})
    assert main(["--validate", "guess-number", "--args", args, "--allow", "spread"]) == 1
    printed = capsys.readouterr().out
    assert "the oracle must get 1 on every task" in printed
    assert "allowed spread" in printed


@pytest.mark.parametrize("argv", [["calculater"], ["calculator", "--allow", "everything"]])
def test_bad_usage_exits_with_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--validate", *argv]) == 2
    assert capsys.readouterr().err.startswith("vf-rl eval: ")


def test_what_has_no_mean_and_a_name_like_an_emoji(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("two.py").write_text(
        "import vf\nfrom tests.evaluation.validation.faulty import Sums\n"
        "class Two(Sums):\n    def oracle(self, task):\n        return lambda messages: 1 / 0\n"
    )
    assert main(["--validate", "two.py:Two", "-n", "2"]) == 1
    printed = capsys.readouterr().out
    assert "two:Two: rewards on 2 tasks" in printed
    assert "skipped spread: no rollout of the oracle has a reward" in printed
    assert "nan" not in printed.split()
