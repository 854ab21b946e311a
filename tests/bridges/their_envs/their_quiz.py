# What others write need not be typed as strictly as ours.
# mypy: ignore-errors
"""A v0 environment of several turns: its own state, answers, stop condition and cleanup."""

from __future__ import annotations

from typing import Any

import verifiers as vf
from datasets import Dataset

CLOSED: list[str] = []  # what was cleaned up, rollout and rubric


class Quiz(vf.MultiTurnEnv):
    async def setup_state(self, state: vf.State) -> vf.State:
        state["left"] = list(state["info"]["questions"])
        state["solved"] = 0
        return state

    async def env_response(self, messages: Any, state: vf.State, **kwargs: Any) -> Any:
        said = str(messages[-1]["content"])
        if said == "crash":
            raise RuntimeError("the quizmaster fell over")
        if said == "offline":
            raise vf.InfraError("the quiz server is gone")
        _, answer = state["left"].pop(0)
        state["solved"] += said == answer
        if not state["left"]:
            state["final_env_response"] = [{"role": "user", "content": "That was the last one."}]
            return []
        return [{"role": "user", "content": f"Next: {state['left'][0][0]}"}]

    @vf.stop
    async def gave_up(self, state: vf.State) -> bool:
        steps = state["trajectory"]
        return bool(steps) and steps[-1]["completion"][-1]["content"] == "I give up"

    @vf.cleanup
    async def put_away(self, state: vf.State) -> None:
        CLOSED.append("rollout")


class QuizRubric(vf.Rubric):
    @vf.cleanup
    async def shred(self, state: vf.State) -> None:
        CLOSED.append("rubric")


def solved(state: vf.State, info: dict[str, Any]) -> float:
    return float(state["solved"]) / len(info["questions"])


def polite(completion: Any) -> float:
    return float(any("please" in str(each["content"]) for each in completion))


def load_environment(
    max_turns: int = 10, rude: float = -0.5, timeout_seconds: float | None = None
) -> vf.Environment:
    questions = [["2 + 2?", "4"], ["3 + 3?", "6"], ["4 + 4?", "8"]]
    rows = [{"prompt": [{"role": "user", "content": "2 + 2?"}], "info": {"questions": questions}}]
    return Quiz(
        dataset=Dataset.from_list(rows),
        rubric=QuizRubric(funcs=[solved, polite], weights=[2.0, rude]),
        max_turns=max_turns,
        timeout_seconds=timeout_seconds,
    )
