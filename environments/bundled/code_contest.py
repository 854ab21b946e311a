"""Write a function that does what the prompt says; hidden tests decide."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vf.environments.bundled.problems import (
    choices,
    graphs,
    grids,
    lists,
    machines,
    numbers,
    text,
)
from vf.environments.bundled.problems.problem import Problem
from vf.environments.environment import Environment, Split, Step
from vf.inference.models.scripted_model import Script
from vf.rubrics.outcomes.code_tests import credit, final_code
from vf.rubrics.outcomes.grading import Case, grade
from vf.rubrics.penalties import code_timeouts, extra_tool_calls, tool_errors
from vf.rubrics.rubric import Rubric
from vf.runtime.errors import ConfigError
from vf.sandbox.hosting.source import Sandboxes, sandbox_source
from vf.tools.episode_sandbox import EpisodeSandbox
from vf.tools.sandbox_tools import PythonTool
from vf.traces.messages import Message
from vf.traces.task import Task
from vf.traces.trace import Trace


def share_passed(trace: Trace) -> float:
    """1 if the final code passes every hidden test, less in proportion to what it fails.

    Always returning the most frequent right value earns 0, as does no code, code that does not
    run, and an episode that ended before an answer.
    """
    return float(trace.info.get("credit", 0.0))


def all_passed(trace: Trace) -> float:
    """1 if the final code passes every hidden test, else 0."""
    return float(share_passed(trace) == 1.0)


def answered(trace: Trace) -> float:
    """1 if the last message holds code at all."""
    return float(final_code(trace.reply) is not None)


class CodeContest(Environment):
    """Programming problems with visible and hidden tests.

    The model may try code with the ``python`` tool. Its answer is the last fenced code block of
    a message without tool calls. The hidden tests run in a fresh sandbox, which sees the
    arguments and never the right values. Reward: the share of hidden tests passed (see
    :func:`share_passed`), less a share for many calls, calls gone wrong and code that hangs.

    Args:
        sandbox: The sandboxes for code; see :func:`~vf.sandbox.hosting.source.sandbox_source`.
        partial: Whether passing some of the hidden tests earns partial credit; otherwise all or
            nothing.
        visible: Tests shown in the prompt, 0 to 5.
        hidden: Hidden tests of each problem, 5 to 40.
        free_calls: Tool calls that cost nothing.
        python_timeout: Seconds for one tool call, at most 15.

    Raises:
        ConfigError: If an argument is out of range, or ``sandbox`` names no sandbox.
    """

    system_prompt = (
        "Solve programming problems in Python 3 with the standard library. You can try code with "
        "the python tool. When you are sure, end with one message that holds the whole function "
        "in a fenced code block."
    )
    max_turns = 6
    tool_timeout = 60.0
    timeout = 600.0

    def __init__(
        self,
        sandbox: Sandboxes = "auto",
        partial: bool = True,
        visible: int = 3,
        hidden: int = 20,
        free_calls: int = 4,
        python_timeout: float = 10.0,
    ) -> None:
        if not 0 <= visible <= 5:
            raise ConfigError(f"code-contest: visible must be 0 to 5, got {visible}")
        if not 5 <= hidden <= 40:
            raise ConfigError(f"code-contest: hidden must be 5 to 40, got {hidden}")
        if free_calls < 0:
            raise ConfigError(f"code-contest: free_calls must not be negative, got {free_calls}")
        if not 0 < python_timeout <= 15:
            raise ConfigError(
                f"code-contest: python_timeout must be above 0 and at most 15, got {python_timeout}"
            )
        self.source = sandbox_source(sandbox)
        self.visible, self.hidden = visible, hidden
        self.tools = [PythonTool(self.source, timeout=python_timeout)]
        self.rubric = Rubric(
            outcome=share_passed if partial else all_passed,
            penalties=[
                extra_tool_calls(0.2, free=free_calls),
                tool_errors(0.1),
                code_timeouts(0.2),
            ],
            metrics=[answered],
        )

    def tasks(self, split: Split) -> Iterator[Task]:
        """Yield the problems of a split; no problem is in both."""
        for problem in problems(split):
            # Always drawn in full: what is visible in one setting is never hidden in another.
            cases = problem.cases(5 + self.hidden)
            yield Task(
                id=problem.name,
                prompt=self._prompt(problem, cases[: self.visible]),
                answer=[[case.code, case.value] for case in cases[5:]],
            )

    def oracle(self, task: Task) -> Script:
        """Hand in the reference solution."""
        [problem] = (
            problem
            for split in ("train", "eval")
            for problem in problems(split)
            if problem.name == task.id
        )
        return [f"```python\n{problem.solution}\n```"]

    def reset(self, task: Task) -> list[Message]:
        """Remember the task."""
        self.cases = [Case(code, value) for code, value in task.answer]
        return self.first_messages(task)

    async def step(self, reply: Message) -> Step:
        """Run the reply's tool calls; without any, grade its code."""
        if reply.tool_calls:
            return await self.run_tools(reply)
        box = EpisodeSandbox.of(self, self.source)
        info: dict[str, Any] = {"credit": 0.0, "passed": 0, "code_timeouts": box.timeouts}
        code = final_code(reply.content)
        if code is not None:
            async with box.fresh() as sandbox:
                graded = await grade(sandbox, code, self.cases)
            info["passed"] = sum(graded.passed)
            info["credit"] = credit(graded.passed, self.cases)
            info["code_timeouts"] += graded.timeouts
        return Step(terminated=True, info=info)

    def _prompt(self, problem: Problem, visible: list[Case]) -> str:
        text = f"Write this function:\n\n    {problem.signature}\n\n{problem.statement}"
        if visible:
            shown = "\n".join(f"    {case.code} == {case.value!r}" for case in visible)
            text += f"\n\nExamples:\n\n{shown}"
        return text


_SHELVES = [text, numbers, lists, grids, graphs, choices, machines]
_EVAL_SHARE = 4  # one problem in four of each kind is held out, for good


def problems(split: Split) -> list[Problem]:
    """Return the problems of a split, always in the same order; no problem is in both."""
    held_out = split == "eval"
    return [
        problem
        for module in _SHELVES
        for index, problem in enumerate(module.shelf.problems)
        if (index % _EVAL_SHARE == _EVAL_SHARE - 1) == held_out
    ]
