"""code-contest: the problems are right, the reward is what hidden tests say, hacks earn nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

import vf
from vf.environments.bundled.code_contest import CodeContest, problems
from vf.environments.bundled.problems.problem import Problem
from vf.rubrics.outcomes import grader_program
from vf.rubrics.outcomes.grading import Grade, grade
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.opening import open_container
from vf.sandbox.contract import OpenSandbox, Sandbox

EVERY = problems("train") + problems("eval")
MOST_CASES = 45


def fenced(code: str) -> str:
    return f"This does it.\n\n```python\n{code}\n```\n"


def play(env: vf.Environment, task: vf.Task, *script: Any) -> vf.Trace:
    return asyncio.run(vf.rollout(env, task, vf.ScriptedModel(script)))


@pytest.fixture
def env(open_local: OpenSandbox) -> CodeContest:
    return CodeContest(sandbox=open_local)


@pytest.fixture
def task(env: CodeContest) -> vf.Task:
    return next(iter(env.tasks("train")))


@pytest.fixture
def problem(task: vf.Task) -> Problem:
    return next(problem for problem in EVERY if problem.name == task.id)


def test_there_are_sixty_and_each_is_in_one_split() -> None:
    names = [problem.name for problem in EVERY]
    assert len(names) >= 60
    assert len(set(names)) == len(names)
    assert len(problems("eval")) >= 12


@pytest.mark.parametrize("problem", EVERY, ids=lambda problem: str(problem.name))
def test_a_problem_says_what_to_write_and_has_enough_different_tests(problem: Problem) -> None:
    assert len(problem.statement) > 40
    assert problem.signature.startswith(f"def {problem.name}(")
    assert problem.signature.endswith(":")
    cases = problem.cases(MOST_CASES)
    assert len({case.code for case in cases}) == len(cases) == MOST_CASES
    assert cases == problem.cases(MOST_CASES), "not the same every time"
    assert all(json.loads(json.dumps(case.value)) is not ... for case in cases)
    hidden = [repr(case.value) for case in cases[5:25]]
    assert max(map(hidden.count, hidden)) <= 14, "one value is nearly always right"
    assert problem.statement not in problem.solution


async def _grades(sandbox: Sandbox, chosen: list[Problem]) -> dict[str, Grade]:
    return {
        problem.name: await grade(sandbox, problem.solution, problem.cases(25))
        for problem in chosen
    }


@pytest.mark.parametrize("problem", EVERY, ids=lambda problem: str(problem.name))
def test_a_reference_solution_passes_every_test(problem: Problem) -> None:
    namespace: dict[str, Any] = {}
    exec(problem.solution, namespace)
    for case in problem.cases(25):
        assert case.holds(json.loads(grader_program._evaluate(case.code, namespace)))


def test_reference_solutions_pass_in_a_container(engine: Engine) -> None:
    async def run() -> dict[str, Grade]:
        async with open_container() as sandbox:
            return await _grades(sandbox, EVERY[::12])

    grades = asyncio.run(run())
    assert len(grades) >= 5
    assert [name for name, found in grades.items() if not found.all_passed] == []


@pytest.mark.slow
@pytest.mark.gate
def test_no_problem_is_solved_by_another_ones_solution(in_sandbox: Callable[..., Any]) -> None:
    """Wrong code of the right name and about the right kind of value does not pass."""

    async def wrong(sandbox: Sandbox) -> list[str]:
        passed = []
        for index, problem in list(enumerate(EVERY))[::10]:
            other = EVERY[index - 1]
            names = f"{problem.name} = {other.name}"
            found = await grade(sandbox, f"{other.solution}\n{names}", problem.cases(25))
            if found.all_passed:
                passed.append(problem.name)
        return passed

    assert in_sandbox(wrong) == []


def test_the_prompt_shows_the_visible_tests_and_none_of_the_hidden(env: CodeContest) -> None:
    for split in ("train", "eval"):
        for task in env.tasks(split):
            assert isinstance(task.prompt, str)
            assert task.prompt.count(" == ") >= 3
            assert len(task.answer) == 20
            hidden = {code for code, _ in task.answer}
            assert not any(f"    {code} ==" in task.prompt for code in hidden)


def test_what_is_visible_in_one_setting_is_hidden_in_no_other(open_local: OpenSandbox) -> None:
    most, fewest = CodeContest(open_local, visible=5), CodeContest(open_local, visible=0, hidden=40)
    for shown, tested in zip(most.tasks("train"), fewest.tasks("train"), strict=True):
        assert "Examples" not in str(tested.prompt)
        assert not any(f"    {code} ==" in str(shown.prompt) for code, _ in tested.answer)


def test_the_reference_earns_everything(env: CodeContest, task: vf.Task, problem: Problem) -> None:
    call = {"python": {"code": f"{problem.solution}\nprint(1 + 1)"}}
    trace = play(env, task, call, fenced(problem.solution))
    assert trace.error is None
    assert trace.reward == 1.0
    assert trace.info["passed"] == 20
    assert trace.messages[3].content == "2"
    assert trace.timing["sandbox"] > 0


def test_a_part_earns_a_part_or_nothing(
    env: CodeContest, task: vf.Task, problem: Problem, open_local: OpenSandbox
) -> None:
    wrong = [code for code, _ in task.answer[:4]]
    code = (
        f"{problem.solution}\n_right = {problem.name}\n"
        f"def {problem.name}(*a):\n"
        f"    call = '{problem.name}(' + ', '.join(map(repr, a)) + ')'\n"
        f"    return None if call in {wrong} else _right(*a)\n"
    )
    values = [repr(value) for _, value in task.answer]
    trace = play(env, task, fenced(code))
    assert trace.info["passed"] == 16
    most = max(map(values.count, values))
    assert trace.reward == pytest.approx((16 - most) / (20 - most))
    assert 0 < (trace.reward or 0) < 1
    assert play(CodeContest(open_local, partial=False), task, fenced(code)).reward == 0.0


@pytest.mark.parametrize(
    "reply",
    [
        "I do not know.",
        "```python\ndef f(): pass",
        "```python\nimport os\nos._exit(0)\n```",
        "```python\nraise SystemExit(0)\n```",
        "```python\n" + "# x" * 50_000 + "\n```",
        "```\nnot python at all\n```",
    ],
    ids=["no code", "not closed", "hard exit", "exit", "too long", "not python"],
)
def test_what_is_no_solution_earns_nothing(env: CodeContest, task: vf.Task, reply: str) -> None:
    trace = play(env, task, reply)
    assert trace.error is None
    assert trace.reward == 0.0


@pytest.mark.slow
@pytest.mark.gate
def test_the_most_frequent_value_earns_nothing(env: CodeContest) -> None:
    for task in list(env.tasks("eval"))[:3]:
        values = [repr(value) for _, value in task.answer]
        best = max(values, key=values.count)
        trace = play(env, task, fenced(f"def {task.id}(*a): return {best}"))
        assert trace.reward == 0.0, task.id


def test_code_run_in_the_tool_does_not_reach_the_grader(
    env: CodeContest, task: vf.Task, problem: Problem
) -> None:
    tool = {
        "python": {
            "code": "import os\nopen('json.py', 'w').write('def dumps(v): return 1')\n"
            "open('sitecustomize.py', 'w').write('raise SystemExit')\nos.listdir()"
        }
    }
    assert play(env, task, tool, fenced(problem.solution)).reward == 1.0


def test_tool_spam_and_timeouts_cost(env: CodeContest, task: vf.Task, problem: Problem) -> None:
    spam: list[Any] = [
        vf.Message(
            "assistant",
            tool_calls=[vf.ToolCall(f"c{i}", "python", '{"code": "1"}') for i in range(8)],
        )
    ]
    trace = play(env, task, *spam, fenced(problem.solution))
    assert trace.score is not None
    assert trace.score.penalties["extra_tool_calls"] == 1.0
    assert trace.reward == pytest.approx(0.8)


def test_a_hanging_tool_call_costs_and_ends_nothing(
    open_local: OpenSandbox, task: vf.Task, problem: Problem
) -> None:
    env = CodeContest(open_local, python_timeout=0.5)
    hang = {"python": {"code": "while True: pass"}}
    trace = play(env, task, hang, fenced(problem.solution))
    assert "timed out" in trace.messages[3].content
    assert trace.info["code_timeouts"] == 1
    assert trace.reward == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"visible": 6}, "visible must be 0 to 5"),
        ({"hidden": 4}, "hidden must be 5 to 40"),
        ({"free_calls": -1}, "free_calls must not be negative"),
        ({"python_timeout": 0}, "python_timeout must be above 0"),
        ({"python_timeout": 16}, "at most 15"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(vf.ConfigError, match=said):
        CodeContest(**settings)
