"""One vf-rl rollout inside verifiers: its limits, its settings, and what fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import vf
from tests.late import Late
from vf.bridges.verifiers.hosted import metrics, reward
from vf.environments import registry
from vf.environments.bundled.calculator import Calculator
from vf.runtime.errors import SandboxError
from vf.testing import FakeServer, Response
from vf.testing.fake_server import Script

v1, loaders = Late("verifiers.v1"), Late("verifiers.v1.utils.loaders")


def says(text: str = "", **calls: str) -> vf.Message:
    """Return the model's reply: a text, or calls of tools with these arguments."""
    tool_calls = [vf.ToolCall(f"c-{name}", name, given) for name, given in calls.items()]
    return vf.Message("assistant", text, tool_calls=tool_calls)


def run(answer: Script, **env: Any) -> tuple[Any, list[dict[str, Any]]]:
    """Run the first task's rollout; return verifiers' trace and the requests to the model."""
    taskset = {"id": "vf-rl", "environment": "calculator"} | env.pop("taskset", {})

    async def go() -> tuple[Any, list[dict[str, Any]]]:
        loaded = loaders.load_environment(loaders.resolve_env_config({"taskset": taskset, **env}))
        task = next(iter(loaded.taskset))
        async with FakeServer(answer) as server:
            context = v1.ModelContext(
                model="m",
                client=v1.EvalClientConfig(base_url=server.base_url, api_key_var="NO_KEY"),
                sampling=v1.SamplingConfig(temperature=0.7, max_tokens=33),
            )
            async with loaded.serving():
                (slot,) = loaded.slots(task)
                episode = await loaded.run_slot(slot, context)
        (trace,) = episode.traces
        return trace, server.bodies

    return asyncio.run(go())


def test_the_rubric_pays_for_the_right_answer_and_verifiers_says_how_to_sample() -> None:
    call = says(calculate='{"op": "*", "a": 22, "b": 27}')
    trace, bodies = run([call, says("Answer: 594")])
    assert (trace.ok, trace.reward, trace.stop_condition) == (True, 1.0, "agent_completed")
    assert trace.num_branches == 1
    assert bodies[0]["messages"] == [
        {"role": "system", "content": vf.make("calculator").system_prompt},
        {"role": "user", "content": "Compute 22 * 27."},
    ]
    assert bodies[1]["messages"][-1]["content"] == "594"
    assert [tool["function"]["name"] for tool in bodies[0]["tools"]] == ["calculate"]
    for body in bodies:
        assert (body["temperature"], body["max_tokens"]) == (0.7, 33)
        assert not {"seed", "top_p"} & set(body)


def test_a_wrong_answer_and_a_wrong_call_cost_what_they_cost_here() -> None:
    trace, _ = run([says(calculate='{"op": "%"}'), says("Answer: 594")])
    assert trace.metrics["penalty/tool_errors"] > 0
    assert trace.metrics["outcome"] == 1.0
    assert 0 < trace.reward < 1
    trace, _ = run([says("Answer: 5")])
    assert (trace.ok, trace.reward) == (True, 0.0)


def test_a_limit_of_verifiers_ends_the_rollout_and_it_is_scored() -> None:
    call = says(calculate='{"op": "*", "a": 22, "b": 27}')
    trace, bodies = run([call], agent={"max_turns": 1})
    assert (trace.ok, trace.stop_condition, trace.is_truncated) == (True, "max_turns", True)
    assert trace.reward == 0.0
    assert trace.info["vf"]["stop_reason"] == "max_turns"
    assert len(bodies) == 1


def test_a_limit_of_the_environment_is_one_of_verifiers(monkeypatch: Any) -> None:
    class Brief(Calculator):
        max_turns = 1
        max_tokens = 20

    monkeypatch.setitem(registry._registered, "brief", Brief)
    call = says(calculate='{"op": "*", "a": 22, "b": 27}')
    trace, bodies = run([call], taskset={"environment": "brief"})
    assert (trace.ok, trace.stop_condition, trace.is_truncated) == (True, "max_turns", True)
    assert bodies[0]["max_tokens"] == 33  # verifiers' own setting goes before ours


class Failing(vf.Environment):
    """An environment of which a part fails."""

    def __init__(self, part: str) -> None:
        self.part = part
        self.rubric = vf.Rubric(outcome=self.outcome)

    def tasks(self, split: str) -> list[vf.Task]:
        return [vf.Task("a", "Go on.")]

    def step(self, reply: vf.Message) -> vf.Step:
        if self.part == "step":
            raise SandboxError("the sandbox is gone")
        return vf.Step(terminated=True)

    def outcome(self, trace: vf.Trace) -> float | None:
        return float("nan") if self.part == "rubric" else None


@pytest.mark.parametrize(
    ("part", "kind", "message"),
    [
        ("step", "SandboxError", "sandbox: the sandbox is gone"),
        ("rubric", "TaskError", "rubric: 'outcome'"),
        ("nothing", "TaskError", "the rubric said that this rollout cannot be scored"),
    ],
)
def test_what_fails_is_an_error_of_verifiers_and_never_a_reward(
    part: str, kind: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry._registered, "failing", Failing)
    taskset = {"environment": "failing", "args": {"part": part}}
    trace, _ = run([says("Well.")], taskset=taskset)
    assert (trace.ok, trace.rewards) == (False, {})
    assert trace.last_error.type == kind
    assert message in trace.last_error.message


def test_a_model_that_does_not_answer_is_an_error_of_the_provider() -> None:
    trace, _ = run(Response("no such model", 400))
    assert (trace.ok, trace.rewards) == (False, {})
    assert trace.last_error.type == "ProviderError"
    assert "no such model" in trace.last_error.message


def test_a_task_that_another_harness_ran_has_no_reward() -> None:
    for read in (reward, metrics):
        with pytest.raises(ValueError, match="another harness ran it: leave the harness out"):
            read({})
