"""What TRL gets of an environment, without a trainer: datasets, tools, rewards."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable
from typing import Any

import pytest

import vf
from tests.late import needs
from tests.traces.agents import delegated
from vf.bridges.trl import rollouts
from vf.evaluation.scripts import oracle_of
from vf.inference.models.scripted_model import Line, as_reply

needs("trl")


def test_a_rollout_of_several_conversations_is_refused_with_the_reason() -> None:
    trace = delegated()
    prompt, completion, mask, _ = rollouts._sequence(trace, [1, 2], closer=0)
    assert (prompt + completion, trace.score) == (trace.branches[0].token_ids, None)
    assert sum(mask) == 5
    assert trace.error is not None
    assert "this one has 3 branches: the first message differs" in trace.error.message


def as_trl(environment: vf.Environment, **settings: Any) -> dict[str, Any]:
    return vf.to_trl(environment, **settings)


async def in_trl(kwargs: dict[str, Any], row: dict[str, Any], script: list[Line]) -> Any:
    """Carry out a scripted conversation as TRL does; return its reward, and what it logged."""
    environment = kwargs["environment_factory"]()
    environment.reset(**row)
    methods = dict(inspect.getmembers(type(environment), inspect.isfunction))
    completion: list[dict[str, Any]] = []
    for turn, line in enumerate(script):
        message = as_reply(line, turn)
        calls = [
            {
                "type": "function",
                "function": {"name": call.name, "arguments": json.loads(call.arguments)},
            }
            for call in message.tool_calls
        ]
        completion.append({"role": "assistant", "content": message.content, "tool_calls": calls})
        at_once = []
        for call in calls:
            name, arguments = call["function"]["name"], call["function"]["arguments"]  # type: ignore[index]
            if name in methods:
                at_once.append((name, methods[name](environment, **arguments)))
            else:
                error = {"error": f"Tool {name} not found."}
                completion.append({"role": "tool", "name": name, "content": str(error)})
        results = await asyncio.gather(*(c for _, c in at_once), return_exceptions=True)
        for (name, _), result in zip(at_once, results, strict=True):
            content = str({"error": str(result)} if isinstance(result, Exception) else result)
            completion.append({"role": "tool", "name": name, "content": content})
    logged: dict[str, float] = {}
    [reward] = await kwargs["reward_funcs"][0](
        prompts=[row["prompt"]],
        completions=[completion],
        completion_ids=[[1, 2, 3]],
        environments=[environment],
        log_metric=logged.__setitem__,
        task=[row["task"]],
    )
    return reward, logged


def calls(**arguments: Any) -> Line:
    return {"calculate": arguments}


SCRIPTS: list[Callable[[vf.Environment, vf.Task], list[Line]]] = [
    lambda env, task: list(oracle_of(env, task) or ()),  # type: ignore[arg-type]
    lambda env, task: ["Answer: 1"],
    lambda env, task: [calls(op="+", a=1, b=1), f"Answer: {task.answer}"],
    lambda env, task: [calls(op="+", a="one", b=1), *oracle_of(env, task)],  # type: ignore[misc]
    lambda env, task: [{"compute": {"x": 1}}, f"Answer: {task.answer}"],
    lambda env, task: [calls(a=1), {"calculate": {}, "other": {}}, f"Answer: {task.answer}"],
    lambda env, task: [*[calls(op="*", a=2, b=2)] * 4, f"Answer: {task.answer}"],
    lambda env, task: [f"Answer: {task.answer} or Answer: 0"],
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_rewards_are_ours(script: Callable[[vf.Environment, vf.Task], list[Line]]) -> None:
    environment = vf.make("calculator", num_train=6, num_eval=2, max_operations=3)
    kwargs = as_trl(environment)
    assert set(kwargs) == {"train_dataset", "eval_dataset", "environment_factory", "reward_funcs"}

    async def run() -> None:
        tasks = list(environment.tasks("train"))
        for task, row in zip(tasks, kwargs["train_dataset"], strict=True):
            lines = script(environment, task)
            ours = await vf.rollout(environment, task, vf.ScriptedModel(lines))
            assert ours.error is None
            theirs, logged = await in_trl(kwargs, row, lines)
            assert theirs == ours.reward
            assert ours.score is not None
            assert logged["score/outcome"] == ours.score.outcome
            for name, value in ours.score.penalties.items():
                assert logged[f"score/{name}"] == value

    asyncio.run(run())


def test_datasets_hold_what_the_model_is_shown() -> None:
    environment = vf.make("calculator", num_train=3, num_eval=2)
    kwargs = as_trl(environment)
    task = next(iter(environment.tasks("eval")))
    assert len(kwargs["train_dataset"]) == 3
    assert len(kwargs["eval_dataset"]) == 2
    assert kwargs["eval_dataset"][0] == {
        "prompt": [message.to_openai() for message in environment.first_messages(task)],
        "task": f"eval/{task.id}",
    }


def test_tools_are_read_by_transformers_as_they_are() -> None:
    from transformers.utils import get_json_schema

    class Shop(vf.Environment):
        def tasks(self, split: Any) -> list[vf.Task]:
            return [vf.Task("one", "Hi")]

        @vf.tool
        async def order(
            self,
            items: list[str],
            size: int | None = None,
            kind: str = "new",
            address: dict[str, Any] | None = None,
        ) -> str:
            """Order things.

            They come by post. Returns: nothing, since it is not a section.

            Args:
                items: What to order, in a
                    list: of names.
                size: How large.
            """
            return "ordered"

    environment = as_trl(Shop())["environment_factory"]()
    read = get_json_schema(environment.order)["function"]
    assert read["name"] == "order"
    assert read["description"].startswith("Order things. They come by post.")
    parameters = read["parameters"]
    assert parameters["required"] == ["items"]
    assert parameters["properties"]["items"] == {
        "type": "array",
        "items": {"type": "string"},
        "description": "What to order, in a list: of names.",
    }
    assert parameters["properties"]["size"]["type"] == "integer"
    assert parameters["properties"]["kind"]["type"] == "string"
    assert parameters["properties"]["address"]["type"] == "object"


class Faulty(vf.Environment):
    """Its tool fails."""

    closed = 0

    def tasks(self, split: Any) -> list[vf.Task]:
        return [vf.Task("one", "Go")] if split == "train" else []

    @vf.tool
    def go(self) -> str:
        """Go."""
        raise OSError("the line is dead")

    def close(self) -> None:
        type(self).closed += 1


def test_a_failure_earns_no_reward() -> None:
    kwargs = as_trl(Faulty())
    assert "eval_dataset" not in kwargs
    row = kwargs["train_dataset"][0]

    async def run() -> None:
        assert await in_trl(kwargs, row, [{"go": {}}, "done"]) == (None, {"score/errors": 1.0})
        reward, logged = await in_trl(kwargs, row, ["done"])
        assert reward == 0.0
        assert logged["score/errors"] == 0.0

    asyncio.run(run())
    assert Faulty.closed == 2


def test_an_environment_without_tools_needs_no_factory() -> None:
    environment = vf.make("reverse-text")
    kwargs = as_trl(environment)
    assert set(kwargs) == {"train_dataset", "eval_dataset", "reward_funcs"}
    task, row = next(iter(environment.tasks("train"))), kwargs["train_dataset"][0]
    for reply in (task.answer, "nothing of it"):
        [reward] = asyncio.run(
            kwargs["reward_funcs"][0](
                prompts=[row["prompt"]],
                completions=[[{"role": "assistant", "content": reply}]],
                completion_ids=[[1, 2]],
                task=[row["task"]],
            )
        )
        trace = asyncio.run(vf.rollout(environment, task, vf.ScriptedModel([reply])))
        assert reward == trace.reward


def test_a_step_of_its_own_needs_our_loop() -> None:
    environment = vf.make("guess-number")
    assert set(as_trl(environment)) >= {"rollout_func", "reward_funcs", "train_dataset"}
    with pytest.raises(vf.ConfigError, match=r"has its own .*step, which TRL's loop"):
        as_trl(environment, loop="trl")
    with pytest.raises(vf.ConfigError, match="loop must be one of auto, trl, vf"):
        as_trl(environment, loop="ours")


def test_an_agent_has_its_own_loop_and_keeps_it() -> None:
    async def solve(task: vf.Task, endpoint: vf.Endpoint) -> None:
        """Ask nothing."""

    environment = vf.AgentEnvironment(solve, tasks={"train": [vf.Task("t", "Go.")]})
    assert "rollout_func" in as_trl(environment)
    with pytest.raises(vf.ConfigError, match=r"has its own loop, which TRL's loop"):
        as_trl(environment, loop="trl")


def test_what_trl_cannot_do_is_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Named(Faulty):
        @vf.tool
        def get_reward(self) -> float:
            """Ask for it."""
            return 1.0

    with pytest.raises(vf.ConfigError, match="a tool 'get_reward', a name that TRL keeps"):
        as_trl(Named())
    grouped = Faulty()
    grouped.rubric = vf.Rubric(
        outcome=lambda trace: 1.0,
        group_rewards=[vf.GroupReward(lambda traces: [1.0 for _ in traces], 0.1, "any")],
    )
    with pytest.raises(vf.ConfigError, match="has group rewards"):
        as_trl(grouped)
    with pytest.raises(vf.ConfigError, match=r"roles X, O in task .* and TRL trains an episode by"):
        as_trl(vf.make("tic-tac-toe", num_train=4, num_eval=4))
    factory = as_trl(Faulty())["environment_factory"]
    with pytest.raises(vf.ConfigError, match=r"has no task None.*remove_unused_columns"):
        factory().reset(prompt=[])
    monkeypatch.setattr("vf.runtime.extras.version", lambda _: "1.15.2")
    with pytest.raises(vf.ConfigError, match=r"trl 1\.15\.2 is not supported, but 1\.16"):
        as_trl(Faulty())
