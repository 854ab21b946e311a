"""code_tests: hidden tests in a fresh sandbox decide, and a lost one decides nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import vf
from tests.rubrics.one_answer import answered, score
from vf.rubrics.outcomes import code_tests
from vf.rubrics.outcomes.code_tests import credit, final_code
from vf.rubrics.outcomes.grading import Case
from vf.runtime.errors import ConfigError, RubricError, SandboxError
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.opening import open_container
from vf.sandbox.contract import OpenSandbox, Sandbox

TESTS = [[f"double({n})", 2 * n] for n in (3, 5, 8, 8)]  # a constant passes two of them
RIGHT = "def double(n):\n    return 2 * n"


def fenced(code: str) -> str:
    return f"So:\n```python\n{code}\n```\n"


def grader(values: dict[int, Any], **sandbox: Any) -> tuple[OpenSandbox, list[vf.ScriptedSandbox]]:
    """Return what opens scripted sandboxes whose grader reports these values, and all opened."""
    opened: list[vf.ScriptedSandbox] = []

    @asynccontextmanager
    async def open_one() -> AsyncIterator[Sandbox]:
        box = vf.ScriptedSandbox(exec=lambda command: report(box), **sandbox)
        opened.append(box)
        async with box:
            yield box

    def report(box: vf.ScriptedSandbox) -> str:
        request = json.loads(box.calls[-1].options["input"])
        return "".join(
            f"{request['nonce']} {index} {json.dumps({'value': value})}\n"
            for index, value in values.items()
        )

    return open_one, opened


@pytest.mark.parametrize(
    ("values", "share", "above", "whole"),
    [
        ({0: 6, 1: 10, 2: 16, 3: 16}, 1.0, 1.0, 1.0),
        ({0: 6, 2: 16, 3: 16}, 0.75, 0.5, 0.0),
        ({0: 16, 1: 16, 2: 16, 3: 16}, 0.5, 0.0, 0.0),
        ({0: 6.0, 1: "10", 2: True}, 0.0, 0.0, 0.0),
        ({}, 0.0, 0.0, 0.0),
    ],
)
def test_what_came_out_is_compared_here(
    values: dict[int, Any], share: float, above: float, whole: float
) -> None:
    open_one, opened = grader(values)
    outcomes = (
        code_tests(open_one, above_constant=False),
        code_tests(open_one),
        code_tests(open_one, partial=False),
    )
    reply = fenced(RIGHT)
    assert [score(outcome, reply, TESTS) for outcome in outcomes] == [share, above, whole]
    assert len(opened) == 3
    assert all(box.closed and len(box.calls) == 1 for box in opened)


def test_the_right_values_and_the_nonce_stay_out_of_reach() -> None:
    open_one, opened = grader({})
    score(code_tests(open_one), fenced(RIGHT), [["double(3)", "the-secret"]])
    score(code_tests(open_one), fenced(RIGHT), [["double(3)", "the-secret"]])
    asked = [box.calls[0] for box in opened]
    assert not any("the-secret" in f"{call.text}{call.options}" for call in asked)
    nonces = {json.loads(call.options["input"])["nonce"] for call in asked}
    assert len(nonces) == 2
    assert not any(nonce in call.text for nonce in nonces for call in asked)


def test_a_claim_without_the_nonce_or_a_good_exit_code_passes_nothing() -> None:
    for claim in ("all passed", 'deadbeef 0 {"value": 6}\n', ""):

        @asynccontextmanager
        async def open_one(claim: str = claim) -> AsyncIterator[Sandbox]:
            yield vf.ScriptedSandbox(exec=[claim])

        assert score(code_tests(open_one, above_constant=False), fenced(RIGHT), TESTS) == 0.0


def test_one_exception_that_is_all_of_them_is_a_constant_answer() -> None:
    cases = [Case("f(1)", raises="KeyError"), Case("f(2)", raises="ValueError"), Case("f(3)", 3)]
    assert credit([True, True, False], cases) == 0.0
    assert credit([True, True, True], cases) == 1.0


def test_without_code_no_sandbox_is_opened() -> None:
    open_one, opened = grader({0: 6, 1: 10, 2: 16, 3: 16})
    for reply in ("I do not know.", "```python\n" + RIGHT, fenced("# x" * 20_000), ""):
        assert score(code_tests(open_one), reply, TESTS) == 0.0
    assert opened == []


def test_a_lost_sandbox_is_an_error_of_the_machinery_and_never_a_reward() -> None:
    open_one, _ = grader({}, lost_after=0)
    with pytest.raises(SandboxError):
        score(code_tests(open_one), fenced(RIGHT), TESTS)


@pytest.mark.parametrize(
    "wrong", [None, [], "double(3)", [["double(3)"]], [[3, 6]], [["f()", 1, 2]]]
)
def test_tests_of_another_form_are_an_error_that_says_which(wrong: Any) -> None:
    open_one, _ = grader({})
    with pytest.raises(RubricError, match=r"'code_tests'.*'the-task'.*\[code, value\]"):
        score(code_tests(open_one), fenced(RIGHT), wrong)


def test_what_opens_no_sandbox_is_refused_at_load_time() -> None:
    with pytest.raises(ConfigError, match="code_tests: open_sandbox must be a function"):
        code_tests("docker")  # type: ignore[arg-type]


def test_in_real_containers(engine: Engine) -> None:
    half = f"{RIGHT} if n != 5 else 0"
    raising = [*TESTS, ["double(None)", None, "TypeError"]]
    replies = {
        fenced(RIGHT): 1.0,
        fenced(f"print('ok')\n{half}"): 2 / 3,
        fenced("def double(n): return 16"): 0.0,
        fenced("import os\nos._exit(0)"): 0.0,
        f"{fenced(RIGHT)}or rather\n{fenced('def double(n): return n')}": 0.0,
    }
    outcome = code_tests(open_container)

    async def run() -> list[Any]:
        # One after another: tests that share this machine with others must not hurry.
        return [await outcome(answered(reply, raising)) for reply in replies]

    assert asyncio.run(run()) == pytest.approx(list(replies.values()))


@pytest.mark.parametrize(("passed", "share"), [(0, 0.0), (5, 0.0), (8, 0.2), (20, 1.0)])
def test_the_share_beyond_chance(passed: int, share: float) -> None:
    cases = [Case(f"f({n})", min(n, 15)) for n in range(20)]
    assert credit([True] * passed + [False] * (20 - passed), cases) == pytest.approx(share)


def test_where_all_tests_want_the_same_one_of_them_counts() -> None:
    cases = [Case("f(1)", 0), Case("f(2)", 0)]
    assert [credit(passed, cases) for passed in ([True, False], [True, True])] == [0.0, 1.0]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\na = 1\n```", "a = 1"),
        ("```\na = 1\n```", "a = 1"),
        ("```python\na\n```\nor rather\n```python\nb\n```", "b"),
        ("```python\na\n```\nand\n```python\nb", "a"),
        ("```python\na\n```python\nb\n```", "b"),
        ("```python\ns = '```'\n```", "s = '```'"),
        ("```python\r\na = 1\r\n```\r\n", "a = 1\r"),
        ("use `a`", None),
        ("", None),
        ("```", None),
    ],
)
def test_the_last_closed_block_is_the_answer(text: str, code: str | None) -> None:
    assert final_code(text) == code
