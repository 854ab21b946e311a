"""v1 tasksets of verifiers: rewards as its own rollouts give them. Also run with verifiers 0.4."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

import vf
from vf.bridges.verifiers.from_verifiers import from_verifiers
from vf.bridges.verifiers.v1 import TasksetEnvironment
from vf.inference.models.scripted_model import Line
from vf.runtime.errors import InfrastructureError
from vf.testing import FakeServer
from vf.traces.trace import StopReason, Trace

pytestmark = [
    pytest.mark.usefixtures("their_envs"),
    pytest.mark.filterwarnings("ignore:.*its weights allow:UserWarning"),
]


def load(id: str = "their-tally", **args: Any) -> TasksetEnvironment:
    environment = from_verifiers(id, **args)
    assert isinstance(environment, TasksetEnvironment)
    return environment


def play(environment: vf.Environment, script: Sequence[Line]) -> Trace:
    task = next(iter(environment.tasks("train")))
    return asyncio.run(vf.rollout(environment, task, vf.ScriptedModel(script)))


async def theirs(environment: TasksetEnvironment, script: Sequence[Line]) -> Any:
    """Let verifiers run the script: its agent, interception and tool servers, over HTTP."""
    import verifiers.v1 as v1

    async with FakeServer(script) as api:
        config = v1.AgentConfig(
            model="scripted",
            harness={"id": "their-loop"},
            runtime=v1.SubprocessConfig(),
            client=v1.EvalClientConfig(base_url=api.base_url, api_key_var="NO_KEY"),
        )
        task = next(iter(environment.tasksets["train"]))
        async with v1.Agent(config) as agent:
            return await agent.run(task), api.bodies


@pytest.mark.slow
@pytest.mark.parametrize(
    ("id", "script"),
    [
        (
            "their-tally",
            [
                {"tally_add": {"number": 99}},
                {"tally_add": {"wrong": 1}},
                {"tally_add": {"number": 20}},
                {"tally_add": {"number": 22}},
                "42",
            ],
        ),
        pytest.param(
            "their-tally",
            [{"tally_add": {"number": 50}}, {"tally_add": {"number": 50}}],
            marks=pytest.mark.slow,
        ),
        ("their-hooks", ["wor"]),
        pytest.param(
            "their-golf",
            ["```python\nprint(open('data/number.txt').read())\n```"],
            marks=pytest.mark.bubblewrap,
        ),
    ],
    ids=["solved", "stopped", "without tools", "runs a program"],
)
def test_rewards_and_metrics_are_verifiers_own(id: str, script: list[Line]) -> None:
    environment = load(id)
    ours = play(environment, script)
    own, requests = asyncio.run(theirs(environment, script))
    assert own.ok, own.errors
    assert ours.error is None, ours.error
    assert ours.score is not None
    assert ours.reward == pytest.approx(own.reward)
    assert ours.score.parts == {name: each.score for name, each in own.rewards.items()}
    assert ours.score.metrics == {**own.metrics, "verifiers_reward": own.reward}
    assert ours.info["verifiers"]["stop_condition"] == own.stop_condition
    # The model was shown the same, tools included.
    shown = [plain(message) for message in requests[-1]["messages"]]
    assert [plain(m.to_openai()) for m in ours.messages][: len(shown)] == shown
    offered = [tool["function"] for tool in requests[-1].get("tools") or ()]
    assert offered == [schema["function"] for schema in environment.toolbox.schemas()]


def plain(message: dict[str, Any]) -> tuple[Any, ...]:
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return message["role"], message.get("content") or "", calls, message.get("tool_call_id")


def test_a_taskset_is_tasks() -> None:
    environment = load(count=2, eval_args={"split": "test"})
    tasks = list(environment.tasks("train"))
    assert [task.id for task in tasks] == ["train-0", "train-1"]
    assert tasks[0].prompt == [
        {"role": "system", "content": "Use the tally."},
        {"role": "user", "content": "What is 40 + 2?"},
    ]
    assert tasks[0].answer == 42
    assert tasks[0].info["data"]["most"] == 50
    assert [task.answer for task in environment.tasks("eval")] == [72, 73]
    assert [task.answer for task in load().tasks("eval")] == [42, 43, 44]
    endless = load("their-hooks")
    assert [len(list(endless.tasks(split))) for split in ("train", "eval")] == [2000, 200]
    assert next(iter(endless.tasks("eval"))).id == "eval-2000"


def test_settings_of_tasks_and_tools_are_arguments() -> None:
    environment = load(task={"bonus": 0.0, "tally": {"step": 2}})
    trace = play(environment, [{"tally_add": {"number": 21}}, "42"])
    assert trace.messages[-2].content == "The tally is 42."
    assert trace.score is not None
    assert trace.score.parts == {"right": 1.0, "tallied": 0.5}


def test_a_call_that_fails_is_reported_to_the_model_and_counted() -> None:
    script: list[Line] = [
        {"tally_add": {"number": 99}, "nope": {}},
        vf.Message("assistant", tool_calls=[vf.ToolCall("x", "tally_add", "{")]),
        "42",
    ]
    trace = play(load(), script)
    assert [(event.name, event.kind) for event in trace.tool_events] == [
        ("tally_add", "rejected"),
        ("nope", "unknown_tool"),
        ("tally_add", "invalid_json"),
    ]
    told = [message.content for message in trace.messages if message.role == "tool"]
    assert "99 is over 50" in told[0] or "tally_add" in told[0] or "add" in told[0]
    assert told[1] == "error: unknown tool 'nope'"
    assert told[2].startswith("error: invalid JSON in tool arguments")


@pytest.mark.parametrize("depth", [300, 940, 100_000])
def test_arguments_that_nest_too_deep_are_reported_to_the_model(depth: int) -> None:
    """Some depths can be read here, but neither sent to a tool's server nor read by verifiers."""
    arguments = '{"number": ' + "[" * depth + "]" * depth + "}"
    call = vf.Message("assistant", tool_calls=[vf.ToolCall("x", "tally_add", arguments)])
    trace = play(load(), [call, "42"])
    assert trace.error is None
    assert [event.kind for event in trace.tool_events] == ["invalid_json"]


def test_a_dead_connection_is_no_part_of_the_task() -> None:
    trace = play(load(), [{"tally_phone": {}}, "42"])
    assert trace.reward is None
    assert trace.error is not None
    assert trace.error.boundary == "tool"
    assert "ConnectionError: nobody is at home" in trace.error.message


def test_rollouts_have_states_of_their_own() -> None:
    async def many() -> list[Trace]:
        environment = load()
        task = next(iter(environment.tasks("train")))
        scripts: list[list[Line]] = [
            [{"tally_add": {"number": number}}, {"tally_add": {"number": 1}}, "42"]
            for number in (41, 5, 41)
        ]
        return await asyncio.gather(
            *(vf.rollout(environment, task, vf.ScriptedModel(script)) for script in scripts)
        )

    traces = asyncio.run(many())
    assert [trace.messages[-2].content for trace in traces] == [
        "The tally is 42.",
        "The tally is 6.",
        "The tally is 42.",
    ]
    assert [trace.score and trace.score.parts["tallied"] for trace in traces] == [1.0, 0.5, 1.0]


def test_our_own_limit_is_one_of_theirs() -> None:
    environment = load()
    environment.max_turns = 1
    trace = play(environment, [{"tally_add": {"number": 1}}])
    assert trace.stop_reason is StopReason.MAX_TURNS
    assert trace.score is not None
    assert trace.score.metrics["cut"] == 1.0


def test_a_function_that_raises_is_an_error_that_names_what() -> None:
    trace = play(load("their-hooks", kind="raising"), ["word"])
    assert trace.reward is None
    assert trace.error is not None
    assert trace.error.boundary == "rubric"
    assert "KeyError: 'no such key'" in trace.error.message


def test_rewards_beyond_one_are_refused_or_mapped() -> None:
    trace = play(load("their-hooks"), ["eight ch"])
    assert trace.error is not None
    assert "reward_range = [0, 2]" in trace.error.message
    assert play(load("their-hooks", reward_range=(0, 4)), ["eight ch"]).reward == 0.5


def test_saved_traces_are_scored_again_where_the_messages_say_all() -> None:
    environment = load("their-hooks")
    trace = play(environment, ["word"])
    saved = Trace.from_json(trace.to_json())
    assert asyncio.run(environment.rubric.score(saved)) == trace.score
    saved.lineages = saved.conversations * 2
    with pytest.raises(InfrastructureError, match="one conversation, and the trace has 2"):
        asyncio.run(environment.rubric.score(saved))
    tally = load()
    with pytest.raises(InfrastructureError, match="the state of the live rollout"):
        asyncio.run(tally.rubric.score(play(tally, ["42"])))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"kind": "boxed"}, r"it needs a container \(Boxed.NEEDS_CONTAINER\)"),
        ({"sandbox": "auto"}, "its tasks run nothing in a runtime, so drop sandbox"),
        ({"kind": "watched"}, r"it needs to intercept the model's requests \(Watched.redact\)"),
        ({"kind": "stopped"}, r"it needs to look into the model's requests \(said_stop"),
        ({"kind": "remote"}, "it needs a docker runtime for the tools of Elsewhere"),
        ({"kind": "unpaid"}, r"its tasks have no @vf.reward, so there is nothing to learn"),
        ({"data": {"image": "python:3"}}, "it needs a container with the image 'python:3'"),
        ({"data": {"prompt": None}}, "it needs a user to open the conversation"),
        ({"data": {"network_allow": ["x.org"]}}, "it needs a runtime with a network policy"),
        ({"knid": "plain"}, r"knid: .* Did you mean 'kind'\? Its taskset takes: .*kind, data"),
        ({"kind": 3}, "kind: Input should be a valid string"),
    ],
)
def test_what_it_needs_and_cannot_have_is_reported_when_it_is_loaded(
    args: dict[str, Any], message: str
) -> None:
    with pytest.raises(vf.ConfigError, match=f"(?s)verifiers:their-hooks:.* ?{message}"):
        load("their-hooks", **args)


def test_a_package_with_agents_of_its_own_is_refused(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "their_agents.py").write_text(
        "import verifiers.v1 as vf\n"
        "from their_hooks import HooksTaskset\n"
        "__all__ = ['HooksTaskset', 'Duel']\n"
        "class Duel(vf.Env[vf.EnvConfig]):\n"
        "    async def run(self, task, agents):\n"
        "        pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(vf.ConfigError, match=r"its own interplay of agents \(Duel\).*verifiers"):
        load("their-agents")


def test_a_user_that_is_a_model_is_refused(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_modeled_user.py").write_text(
        "from their_hooks import HooksTaskset\n"
        "from verifiers.v1.envs.user_sim.env import UserSimEnv\n"
        "__all__ = ['HooksTaskset', 'Sim']\n"
        "class Sim(UserSimEnv): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    message = r"its own interplay of agents \(Sim of assistant and user\).*run with verifiers"
    with pytest.raises(vf.ConfigError, match=message):
        load("their-modeled-user")
