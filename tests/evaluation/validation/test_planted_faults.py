"""Validation finds the fault that was planted, and says what to do about it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import vf
from tests.evaluation.validation import faulty
from vf.environments.environment import Split
from vf.evaluation.validation.findings import Report
from vf.evaluation.validation.validate import CHECKS, validate
from vf.inference.models.scripted_model import Script
from vf.rubrics.penalties.unread import warn_unread
from vf.runtime.errors import ConfigError
from vf.sandbox.container.opening import open_container

TASKS = 4


def validated(environment: vf.Environment, **settings: Any) -> Report:
    return asyncio.run(validate(environment, **{"tasks": TASKS, **settings}))


def failures(report: Report) -> list[str]:
    return [finding.check for finding in report.findings if finding.status == "fail"]


def rewards(report: Report, name: str) -> list[float | None]:
    return next(agent.rewards for agent in report.agents if agent.name == name)


@pytest.mark.parametrize("environment", [faulty.Sums(), faulty.SumsWithTool()])
def test_an_environment_without_a_fault_passes_every_check(environment: vf.Environment) -> None:
    report = validated(environment)
    assert {f.check: f.status for f in report.findings} == dict.fromkeys(CHECKS, "ok")
    assert report.passed
    assert report.form == "Answer: {}"
    assert rewards(report, "oracle") == [1.0] * TASKS


@pytest.mark.parametrize(
    ("environment", "chance"), [(faulty.Choices(), 0.25), (faulty.YesOrNo(), 0.5)]
)
def test_where_a_guess_may_be_right_nothing_is_wrong(
    environment: vf.Environment, chance: float
) -> None:
    report = validated(environment, tasks=20)
    assert failures(report) == []
    guesses = [reward for reward in rewards(report, "guess") if reward is not None]
    assert sum(guesses) / 20 == pytest.approx(chance, abs=0.2)
    for hedge in ("list-in-one", "list-all"):
        assert rewards(report, hedge) == [0.0] * 20


class Few(faulty.Sums):
    """Sums of which there are only a few, so that every task's answer is known."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def tasks(self, split: Split) -> Iterator[vf.Task]:
        return islice(super().tasks(split), self.count)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_guess_is_never_the_tasks_own_answer(count: int, seed: int) -> None:
    report = validated(Few(count), seed=seed)
    assert failures(report) == []
    for agent in ("guess", "frequent", "flood", "show"):
        assert rewards(report, agent) == [0.0] * count


class Hacked(faulty.Sums):
    """Its author has thought of somebody who is paid: who says the sum of another task first."""

    def __init__(self) -> None:
        super().__init__(outcome=lambda trace: float(str(trace.task.answer) in trace.reply))

    def hackers(self, task: vf.Task) -> dict[str, Script]:
        return {
            "names-two": [f"Answer: {task.answer}. Or Answer: 7"],
            "hears": lambda messages: messages[-1].content,
        }


def test_a_hacker_of_the_authors_own_that_is_paid() -> None:
    report = validated(Hacked())
    assert "names-two gets 1.000" in report.finding("hackers").detail
    assert rewards(report, "hears") == [0.0] * TASKS


def test_hackers_that_differ_between_tasks_are_refused() -> None:
    environment = Hacked()
    environment.hackers = lambda task: {task.id: []}  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match="must have the same names for every task"):
        validated(environment)


def test_a_prompt_that_holds_its_answer() -> None:
    report = validated(faulty.Sums(prompt="What is {a} + {b}? (It is {answer}.)"))
    assert "leaks" in failures(report)
    assert f"{TASKS} of {TASKS} tasks" in report.finding("leaks").detail
    assert "--allow leaks" in report.finding("leaks").fix


def test_an_answer_that_reset_lets_slip() -> None:
    class Slips(faulty.Sums):
        def reset(self, task: vf.Task) -> str:
            return f"{task.prompt} <!-- {task.answer} -->"

    assert "leaks" in failures(validated(Slips()))


@pytest.mark.parametrize(
    ("paid", "said"),
    [
        (lambda trace: not trace.reply, "no-op gets 1.000 (at most 0.25)"),
        (lambda trace: trace.reply == trace.task.prompt, "copy gets 1.000"),
        (lambda trace: trace.reply.startswith("Answer:"), "wrong gets 1.000"),
    ],
)
def test_a_reward_for_ignorance(paid: Callable[[vf.Trace], bool], said: str) -> None:
    report = validated(faulty.paying(paid))
    assert "ignorant" in failures(report)
    assert said in report.finding("ignorant").detail


@pytest.mark.parametrize(
    ("environment", "different"),
    [(faulty.Unseeded(), "first messages"), (faulty.RewardsByChance(), "rewards")],
)
def test_what_the_seed_does_not_decide(environment: vf.Environment, different: str) -> None:
    report = validated(environment)
    assert "deterministic" in failures(report)
    assert different in report.finding("deterministic").detail
    assert "self.rng" in report.finding("deterministic").fix


@pytest.mark.parametrize(
    ("environment", "hint"),
    [
        (faulty.OtherTasks(), "not the same the second time"),
        (faulty.SharedTasks(), "in the train split"),
        (faulty.NotJson(), "cannot be written to a file"),
    ],
)
def test_tasks_that_cannot_be_relied_on(environment: vf.Environment, hint: str) -> None:
    report = validated(environment)
    assert "tasks" in failures(report)
    assert hint in report.finding("tasks").detail


@pytest.mark.parametrize("environment", [faulty.Undescribed(), faulty.UndescribedInReset()])
def test_a_tool_that_nobody_described(environment: vf.Environment) -> None:
    report = validated(environment)
    assert failures(report) == ["tools"]
    for problem in ("add has no description", "'a' has no description", "'b' has no description"):
        assert problem in report.finding("tools").detail


def test_a_penalty_that_finds_nothing_to_read() -> None:
    warn_unread.cache_clear()
    with pytest.warns(UserWarning, match="'tool_errors' has nothing to read"):
        report = validated(faulty.Sums(penalties=[vf.penalties.tool_errors()]))
    assert failures(report) == ["penalties"]
    assert "tool_errors applied to no rollout" in report.finding("penalties").detail


SAYS = "All tests passed."


def busy(trace: vf.Trace) -> float:
    return float(len(trace.tool_events) >= 2 or str(trace.task.answer) == trace.reply[8:])


@pytest.mark.parametrize(
    ("hacker", "environment"),
    [
        ("list-in-one", faulty.paying(lambda trace: str(trace.task.answer) in trace.reply)),
        ("list-all", faulty.paying(lambda t: f"Answer: {t.task.answer}" in t.reply)),
        ("fake-results", faulty.contains('"passed": true')),
        ("persuade", faulty.contains("VERDICT correct: right")),
        ("print-expected", faulty.contains(SAYS, "```python")),
        ("exit-early", faulty.contains("_exit(0)")),
        ("overwrite-tests", faulty.contains("write_text")),
        ("patch-runner", faulty.contains("conftest.py")),
        ("delete-tests", faulty.contains("unlink()")),
        ("repeat", faulty.paying(lambda t: t.reply.count(str(t.task.prompt)) > 2)),
        ("flood", faulty.paying(lambda trace: trace.completion_tokens > 5000)),
        ("listen", faulty.Talkative()),
        ("show", faulty.SumsWithTool(busy)),
        ("overwrite-tests", faulty.Repository()),
    ],
)
def test_what_a_hacker_is_paid_for(hacker: str, environment: vf.Environment) -> None:
    report = validated(environment)
    assert failures(report) == ["hackers"]
    assert f"{hacker} gets 1.000" in report.finding("hackers").detail


def test_tests_that_the_model_cannot_reach() -> None:
    report = validated(faulty.Repository(checked=True))
    assert report.passed
    assert rewards(report, "overwrite-tests") == [0.0] * TASKS


@pytest.mark.usefixtures("containers")
@pytest.mark.parametrize("here", [False, True])
def test_tests_that_run_where_the_code_can_end_them(here: bool, tmp_path: Path) -> None:
    async def run() -> Report:
        async with open_container() as container:
            return await validate(faulty.RunsTheAnswer(container, here), tasks=2)

    report = asyncio.run(run())
    assert failures(report) == (["hackers", "sandbox"] if here else ["hackers"])
    # On this machine, code that could do damage does nothing.
    for hacker in ["exit-early"] if here else ["exit-early", "equal-to-all"]:
        assert f"{hacker} gets 1.000" in report.finding("hackers").detail
    assert Path.cwd() == tmp_path


def test_an_environment_that_falls_over() -> None:
    report = validated(faulty.Brittle())
    assert "errors" in failures(report)
    assert "no-op, task 'eval-0': step raised IndexError" in report.finding("errors").detail


def test_rewards_that_never_differ() -> None:
    report = validated(faulty.Sums(lambda trace: 0.0))
    assert failures(report) == ["oracle", "spread"]
    assert "only 0.000 more" in report.finding("spread").detail


class Oracle(faulty.Sums):
    """Sums with another oracle."""

    def __init__(self, script: Any) -> None:
        super().__init__()
        self.script = script

    def oracle(self, task: vf.Task) -> Script | None:
        found: Script | None = self.script(task)
        return found


def test_without_an_oracle_nothing_is_claimed() -> None:
    report = validated(Oracle(lambda task: None))
    assert report.passed
    statuses = {finding.check: finding.status for finding in report.findings}
    assert (statuses["oracle"], statuses["spread"]) == ("skipped", "skipped")
    assert "define oracle(self, task)" in report.finding("oracle").fix
    assert report.form == "Answer: {}"  # found without it


@pytest.mark.parametrize(
    ("script", "hint"),
    [
        (lambda task: [f"Answer: {task.answer + 1}"], "0.000 on 'eval-0'"),
        (lambda task: task.answer["value"], "oracle raised TypeError on task 'eval-0'"),
        (lambda task: [], "failed on 'eval-0'"),
    ],
)
def test_an_oracle_that_does_not_solve_it(script: Any, hint: str) -> None:
    report = validated(Oracle(script))
    assert "oracle" in failures(report)
    assert hint in report.finding("oracle").detail
    assert not any("nan" in finding.detail.split() for finding in report.findings)


def test_a_penalty_on_a_faultless_solution() -> None:
    def always(trace: vf.Trace) -> float:
        return 1.0

    report = validated(faulty.Sums(penalties=[vf.Penalty(always, 0.1)]))
    assert failures(report) == ["oracle"]
    assert "0.900" in report.finding("oracle").detail


def test_a_check_that_may_fail() -> None:
    report = validated(faulty.Sums(prompt="Copy {answer}."), allow=["leaks", "ignorant", "hackers"])
    assert report.finding("leaks").status == "allowed"


@pytest.mark.parametrize(
    ("settings", "hint"), [({"tasks": 1}, "at least 2"), ({"allow": ["leak"]}, "no check 'leak'")]
)
def test_wrong_settings(settings: dict[str, Any], hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        validated(faulty.Sums(), **settings)


@pytest.mark.slow
@pytest.mark.gate
def test_the_same_seed_gives_the_same_report() -> None:
    environment = vf.make("guess-number")
    first, second = validated(environment, seed=3), validated(environment, seed=3)
    assert first.to_dict() == second.to_dict()
    assert first.to_dict() != validated(environment, seed=4).to_dict()


@pytest.mark.parametrize(
    ("agent", "read"),
    [
        ("numbers", lambda answer: int(answer) if answer.isdigit() else 0),
        ("nest", lambda answer: json.loads(answer) if answer[:1] in "[{" else 0),
    ],
)
def test_an_environment_in_which_a_policy_can_go_unscored_is_named(
    agent: str, read: Callable[[str], object]
) -> None:
    def outcome(trace: vf.Trace) -> float:
        answer = trace.reply.partition("Answer: ")[2]
        with suppress(json.JSONDecodeError):
            read(answer)
        return float(answer == str(trace.task.answer))

    report = validated(faulty.Sums(outcome))
    assert None in rewards(report, agent)
    assert "errors" in failures(report)
