# What others write need not be typed as strictly as ours.
# mypy: ignore-errors
"""Two v0 environments with tools: plain ones, and ones that a rollout's state is put into."""

from __future__ import annotations

from typing import Any

import verifiers as vf
from datasets import Dataset


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: One.
        b: The other.
    """
    return a + b


async def divide(a: float, b: float) -> float:
    """Divide a by b."""
    return a / b


def look_up(word: str) -> str:
    """Look a word up in a dictionary that is on a machine far away."""
    raise ConnectionError("the dictionary is gone")


def right(completion: Any, answer: str) -> float:
    return float(str(completion[-1]["content"]).strip() == answer)


def few_calls(completion: Any) -> float:
    calls = sum(len(each.get("tool_calls") or []) for each in completion)
    return 1.0 / (1 + calls)


def put(key: str, value: str, shelf: dict[str, str]) -> str:
    """Put a value on the shelf."""
    shelf[key] = value
    return f"{key} is there"


def take(key: str, shelf: dict[str, str]) -> str:
    """Take a value from the shelf."""
    return shelf[key]


class Shelf(vf.StatefulToolEnv):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_tool(put, args_to_skip=["shelf"])
        self.add_tool(take, args_to_skip=["shelf"])

    async def setup_state(self, state: vf.State) -> vf.State:
        state["shelf"] = {"old": "coat"}
        return state

    def update_tool_args(
        self, tool_name: str, tool_args: dict, messages: Any, state: vf.State, **kwargs: Any
    ) -> dict:
        return {**tool_args, "shelf": state["shelf"]}


def shelved(state: vf.State, answer: str) -> float:
    return len(set(answer.split()) & set(state["shelf"].values())) / len(answer.split())


def load_environment(kind: str = "plain", max_turns: int = 4) -> vf.Environment:
    if kind == "shelf":
        rows = [{"question": "Put a hat on the shelf.", "answer": "coat hat"}]
        rubric = vf.Rubric(funcs=[shelved])
        return Shelf(dataset=Dataset.from_list(rows), rubric=rubric, max_turns=max_turns)
    rows = [{"question": "What is 17 + 25?", "answer": "42"}]
    return vf.ToolEnv(
        dataset=Dataset.from_list(rows),
        tools=[add, divide, look_up],
        rubric=vf.Rubric(funcs=[right, few_calls], weights=[0.8, 0.2]),
        max_turns=max_turns,
    )
