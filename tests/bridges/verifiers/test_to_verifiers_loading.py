"""What verifiers' loader makes of our modules, and the errors that a user sees."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import vf
from tests.late import Late
from vf.environments import registry

command, loaders = Late("verifiers.v1.cli.eval.main"), Late("verifiers.v1.utils.loaders")

SHIM = """\
import vf

Taskset, Harness, Env = vf.to_verifiers("calculator", max_operations=1, max_operand=50)
__all__ = ["Env", "Harness", "Taskset"]
"""


def taskset(id: str = "vf-rl", **settings: Any) -> Any:
    return loaders.load_environment(
        loaders.resolve_env_config({"taskset": {"id": id, **settings}})
    ).taskset


def test_a_module_of_three_lines_is_an_environment_of_verifiers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "small_sums.py").write_text(SHIM)
    monkeypatch.syspath_prepend(tmp_path)
    made = taskset("small-sums", args={"max_operand": 60})
    assert (made.environment.max_operations, made.environment.max_operand) == (1, 60)
    assert taskset("somebody/small-sums@1.0").environment.max_operand == 50
    assert loaders.taskset_class("small-sums") is loaders.taskset_class("small-sums")
    first = next(iter(made))
    (same,) = [task for task in made.environment.tasks("train") if task.id == first.key]
    assert first.data.prompt == same.prompt
    assert first.data.task["answer"] == same.answer


def test_the_same_arguments_give_the_same_classes() -> None:
    one = vf.to_verifiers("calculator", max_operations=1)
    assert vf.to_verifiers("calculator", max_operations=1) is one
    assert vf.to_verifiers("calculator") is not one


def test_importing_the_module_for_verifiers_loads_nothing_of_it() -> None:
    code = "import sys, vf_rl; print('verifiers' in sys.modules, hasattr(vf_rl, 'Rubric'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False False"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"environment": "calculater"}, "no environment 'calculater'. Did you mean 'calculator'?"),
        ({}, "no environment is named: set env.taskset.environment"),
        ({"environment": "calculator", "split": "test"}, "Input should be 'train' or 'eval'"),
        ({"environment": "calculator", "argz": {}}, "argz"),
        (
            {"environment": "calculator", "args": {"max_operation": 1}},
            "takes no argument 'max_operation'. Did you mean 'max_operations'",
        ),
        ({"environment": "calculator", "args": {"max_operations": 9}}, "must be 1 to 4, got 9"),
    ],
)
def test_a_wrong_setting_is_refused_when_verifiers_loads_it(
    settings: dict[str, Any], said: str
) -> None:
    with pytest.raises((vf.ConfigError, ValueError), match=re.escape(said)):
        taskset(**settings)


def test_verifiers_command_says_it_in_its_own_way(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["eval"])  # which it overwrites
    with pytest.raises(SystemExit) as caught:
        command.main(["vf-rl", "--env.taskset.environment", "calculater", "--no-push", "--dry-run"])
    assert caught.value.code not in (0, None)
    shown = f"{caught.value.code}{''.join(capsys.readouterr())}"
    assert "Did you mean 'calculator'?" in re.sub(r"[\s│]+", " ", shown)


def test_another_runtime_is_refused_at_once() -> None:
    agent = {"runtime": {"type": "docker"}}
    config = {"taskset": {"id": "vf-rl", "environment": "calculator"}, "agent": agent}
    with pytest.raises(ValueError, match="runtime 'docker' cannot be used here"):
        loaders.resolve_env_config(config)


def all_equal(traces: Sequence[vf.Trace]) -> list[float]:
    return [1.0] * len(traces)


class Grouped(vf.Environment):
    """An environment that compares the rollouts of a task."""

    rubric = vf.Rubric(outcome=lambda trace: 1.0, group_rewards=[vf.GroupReward(all_equal)])


def test_group_rewards_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._registered, "grouped", Grouped)
    with pytest.raises(vf.ConfigError, match=r"its group rewards \(all_equal\) compare all"):
        taskset(environment="grouped")


def test_self_play_whose_reward_is_the_mean_of_both_sides_is_refused() -> None:
    args = {"opponents": {"itself": "policy"}}
    with pytest.raises(
        vf.ConfigError, match="tic-tac-toe: the policy plays the roles X, O in task"
    ):
        list(taskset(environment="tic-tac-toe", args=args).load())
    assert list(taskset(environment="tic-tac-toe", args={"opponents": {"r": "random"}}).load())


def test_arguments_that_are_not_json_are_refused() -> None:
    with pytest.raises(vf.ConfigError, match="travel to other processes as JSON"):
        vf.to_verifiers("calculator", max_operations={1, 2})
