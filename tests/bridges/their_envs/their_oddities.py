# What others write need not be typed as strictly as ours.
# mypy: ignore-errors
"""v0 environments with something special about them, and some that cannot be used."""

from __future__ import annotations

from typing import Any

import verifiers as vf
from datasets import Dataset
from openai import AsyncOpenAI

ROWS = [{"question": "Say a number.", "answer": "7"}]


def number(completion: Any) -> float:
    return float(completion[-1]["content"])


def ranked(completions: list[Any]) -> list[float]:
    values = [float(each[-1]["content"]) for each in completions]
    return [sum(value >= other for other in values) / len(values) for value in values]


def nothing(completion: Any) -> None:
    return None


def vain(completion: Any, judge: Any) -> float:
    raise AssertionError("never called: it asks for what is not there")


async def judged(judge: Any, prompt: Any, completion: Any, answer: str, state: vf.State) -> float:
    return float("yes" in await judge(prompt, completion, answer, state))


class Rewriter(vf.SingleTurnEnv):
    async def get_prompt_messages(self, state: vf.State) -> Any:
        return state["prompt"][-1:]


class Second(vf.MultiTurnEnv):
    """Asks the model something else in between."""

    async def env_response(self, messages: Any, state: vf.State, **kwargs: Any) -> Any:
        other = [vf.UserMessage(role="user", content="Is that right?")]
        await self.get_model_response(state, other)
        return [{"role": "user", "content": "Go on."}]


class Remote(vf.SandboxEnv):
    """Needs a sandbox."""

    def __init__(self, **kwargs: Any) -> None:
        self.active_sandboxes = set()
        vf.MultiTurnEnv.__init__(self, **kwargs)

    async def teardown_sandbox_client(self) -> None:
        """There is none."""


class State(vf.SingleTurnEnv):
    async def setup_state(self, state: vf.State) -> vf.State:
        state["mine"] = 1
        return state


def load_environment(kind: str, weight: float = 1.0, judge: str = "") -> Any:
    dataset = Dataset.from_list(ROWS)
    one = vf.Rubric(funcs=[number], weights=[weight])
    if kind == "grouped":
        rubric = vf.Rubric(funcs=[number, ranked], weights=[0.1, 0.5])
        return vf.SingleTurnEnv(dataset=dataset, rubric=rubric)
    if kind == "grouped state":
        return State(dataset=dataset, rubric=vf.Rubric(funcs=[ranked]))
    if kind in ("nothing", "vain"):
        rubric = vf.Rubric(funcs=[nothing if kind == "nothing" else vain])
        return vf.SingleTurnEnv(dataset=dataset, rubric=rubric)
    if kind == "judged":
        client = AsyncOpenAI(base_url=judge, api_key="none", max_retries=0)
        rubric = vf.JudgeRubric(judge_client=client, judge_model="judge")
        rubric.add_reward_func(judged)
        return vf.SingleTurnEnv(dataset=dataset, rubric=rubric)
    if kind == "eval only":
        return vf.SingleTurnEnv(eval_dataset=dataset, rubric=one)
    if kind == "own tools":
        rows = Dataset.from_list([{**ROWS[0], "info": {"tool_defs": [{"name": "x"}]}}])
        return vf.SingleTurnEnv(dataset=rows, rubric=one)
    if kind == "picture":
        part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
        rows = Dataset.from_list([{"prompt": [{"role": "user", "content": [part]}], "answer": ""}])
        return vf.SingleTurnEnv(dataset=rows, rubric=one)
    if kind == "raises":
        raise KeyError("the data set is not there")
    if kind == "none":
        return None
    if kind == "mixed":
        tool = vf.ToolEnv(dataset=dataset, rubric=one, tools=[len_of])
        return vf.EnvGroup([tool, vf.SingleTurnEnv(dataset=dataset, rubric=one)])
    if kind == "text":
        rows = Dataset.from_list([{"prompt": "Say a number.", "answer": "0.8"}])
        return vf.SingleTurnEnv(dataset=rows, rubric=one)
    if kind == "weightless":
        return vf.SingleTurnEnv(dataset=dataset, rubric=vf.Rubric())
    if kind == "wide group":
        wide = vf.Rubric(funcs=[number, nothing], weights=[1.0, 0.2])
        envs = [vf.SingleTurnEnv(dataset=dataset, rubric=each) for each in (one, wide)]
        return vf.EnvGroup(envs, env_names=["first", "second"])
    if kind == "group":
        other = Dataset.from_list([{"question": "Say another.", "answer": "8"}])
        two = vf.Rubric(funcs=[number], weights=[0.5])
        envs = [
            vf.SingleTurnEnv(dataset=dataset, rubric=one),
            vf.SingleTurnEnv(dataset=other, rubric=two),
        ]
        return vf.EnvGroup(envs, env_names=["first", "second"])
    cls = {"rewrites": Rewriter, "second": Second, "remote": Remote, "state": State}[kind]
    return cls(dataset=dataset, rubric=one)


def len_of(text: str) -> int:
    """Count the characters."""
    return len(text)
