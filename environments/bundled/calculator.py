"""Work out nested arithmetic with a calculator that knows one operation at a time."""

from __future__ import annotations

import ast
import operator
import random
import re
from collections.abc import Iterator
from typing import Any, Literal

from vf.environments.environment import Environment, Split
from vf.environments.generated import distinct_tasks, split_sizes
from vf.inference.models.scripted_model import Script
from vf.rubrics.penalties import extra_tool_calls, tool_errors
from vf.rubrics.rubric import Rubric
from vf.runtime.errors import ConfigError
from vf.traces.task import Task
from vf.traces.tools import tool
from vf.traces.trace import Trace

Operation = Literal["+", "-", "*"]
_APPLY = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_SIGNS: dict[type, str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}
_ANSWER = re.compile(r"Answer:\s*(-?\d+)(?![.,]?\d)")
_LONGEST_ANSWER = 100  # digits; Python refuses to read numbers of thousands


def final_answer(text: str) -> int | None:
    """Return the whole number after the text's only ``Answer:``; None if another one follows."""
    matches = list(_ANSWER.finditer(text))
    if len(matches) != 1 or any(character.isdigit() for character in text[matches[0].end() :]):
        return None
    return int(matches[0][1]) if len(matches[0][1]) <= _LONGEST_ANSWER else None


def correct(trace: Trace) -> float:
    """1 if the last message answers with the right number and no other one, 0 otherwise.

    Hedging does not pay: a message with two answers is wrong.
    """
    return float(final_answer(trace.reply) == trace.task.answer)


def answered(trace: Trace) -> float:
    """1 if the last message holds an answer at all."""
    return float(final_answer(trace.reply) is not None)


class Calculator(Environment):
    """Nested arithmetic, one tool call per operation.

    A task of n operations needs n calls, each using the result of the one before, and then an
    answer. Reward: the answer is right, less a share for wrong or superfluous calls.

    Args:
        max_operations: Operations in the longest task, 1 to 4.
        max_operand: Operands are drawn from 1 to this.
        num_train: Tasks in the train split.
        num_eval: Tasks in the eval split; no expression is in both splits.
        seed: Seed of the tasks.

    Raises:
        ConfigError: If an argument is out of range.
    """

    system_prompt = (
        "Work it out with the calculate tool, one operation per call. "
        "End with 'Answer: ' and the number."
    )
    max_turns = 6

    def __init__(
        self,
        max_operations: int = 2,
        max_operand: int = 50,
        num_train: int = 2000,
        num_eval: int = 200,
        seed: int = 0,
    ) -> None:
        if not 1 <= max_operations <= 4:
            raise ConfigError(f"calculator: max_operations must be 1 to 4, got {max_operations}")
        if max_operand < 10:
            raise ConfigError(f"calculator: max_operand must be at least 10, got {max_operand}")
        self.max_operations = max_operations
        self.max_operand = max_operand
        self.sizes = split_sizes("calculator", num_train, num_eval)
        self.seed = seed
        self.rubric = Rubric(
            outcome=correct,
            penalties=[extra_tool_calls(0.3, free="operations"), tool_errors(0.2)],
            metrics=[answered],
        )

    @tool
    def calculate(self, op: Operation, a: int, b: int) -> int:
        """Apply one operation to two integers.

        Args:
            op: The operation.
            a: Left operand.
            b: Right operand.
        """
        return int(_APPLY[op](a, b))

    def tasks(self, split: Split) -> Iterator[Task]:
        """Yield distinct expressions; which split an expression is in never changes."""
        return distinct_tasks(
            "calculator", self._draw, split=split, count=self.sizes[split], seed=self.seed
        )

    def plan(self, task: Task) -> list[dict[str, Any]]:
        """Return the arguments of the calls that work a task out, from the inside."""
        calls: list[dict[str, Any]] = []

        def work_out(node: ast.AST) -> int:
            match node:
                case ast.BinOp():
                    a, b = work_out(node.left), work_out(node.right)
                    op = _SIGNS[type(node.op)]
                    calls.append({"op": op, "a": a, "b": b})
                    return int(_APPLY[op](a, b))
                case ast.Constant(value=int(value)):
                    return value
            raise ValueError(f"not an expression of calculator's: {task.id}")

        work_out(ast.parse(task.id, mode="eval").body)
        return calls

    def oracle(self, task: Task) -> Script:
        """Make one call per operation, and answer."""
        return [*({"calculate": call} for call in self.plan(task)), f"Answer: {task.answer}"]

    def privileged_context(self, task: Task) -> str:
        """Tell the calls that work a task out, and the answer."""
        calls = ", ".join(f"{call['a']} {call['op']} {call['b']}" for call in self.plan(task))
        return f"Solution: calculate {calls}. Answer: {task.answer}."

    def _draw(self, rng: random.Random) -> Task:
        operations = rng.randint(1, self.max_operations)
        expression, value = self._expression(rng, operations)
        return Task(
            id=expression,
            prompt=f"Compute {expression}.",
            answer=value,
            info={"operations": operations},
        )

    def _expression(self, rng: random.Random, operations: int) -> tuple[str, int]:
        """Draw an expression and its value; a nested one is grown from the inside out."""
        value = rng.randint(1, self.max_operand)
        text = str(value)
        for depth in range(operations):
            op = rng.choice(list(_APPLY))
            other = rng.randint(1, self.max_operand)
            inner = f"({text})" if depth else text
            if rng.random() < 0.5:
                text, value = f"{inner} {op} {other}", int(_APPLY[op](value, other))
            else:
                text, value = f"{other} {op} {inner}", int(_APPLY[op](other, value))
        return text, value
