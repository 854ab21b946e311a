"""v0 environments of verifiers: rewards as its own runs give them, on the same completions."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Sequence
from typing import Any

import pytest

import vf
from vf.bridges.verifiers.from_verifiers import from_verifiers
from vf.bridges.verifiers.v0 import V0Environment
from vf.inference.model import Conversation, Reply
from vf.inference.models.scripted_model import Line
from vf.testing import FakeServer
from vf.traces.trace import StopReason, Trace

pytestmark = [
    pytest.mark.usefixtures("their_envs"),
    pytest.mark.filterwarnings("ignore:.*its weights allow:UserWarning"),
]


def load(id: str, **args: Any) -> V0Environment:
    environment = from_verifiers(id, **args)
    assert isinstance(environment, V0Environment)
    return environment


def task_of(environment: vf.Environment) -> vf.Task:
    return next(iter(environment.tasks("train")))


def play(environment: vf.Environment, script: Sequence[Line], task: vf.Task | None = None) -> Trace:
    return asyncio.run(
        vf.rollout(environment, task or task_of(environment), vf.ScriptedModel(script))
    )


async def theirs(environment: V0Environment, script: Sequence[Line], index: int = 0) -> Any:
    """Let verifiers run the script itself, over HTTP, and return what it makes of it."""
    from verifiers.legacy.types import ClientConfig

    async with FakeServer(script) as api:
        client = ClientConfig(api_base_url=api.base_url, api_key_var="NO_KEY", max_retries=0)
        rows = environment.theirs.get_dataset().select([index])
        outputs = await environment.theirs.generate(rows, client=client, model="scripted")
    return outputs["outputs"][0], api.bodies


SCRIPTS: list[tuple[str, dict[str, Any], list[Line]]] = [
    ("their-words", {}, ["<answer>rohcna</answer>"]),
    ("their-words", {}, ["<answer>anch</answer>"]),
    ("their-words", {}, ["no tags, r"]),
    ("their-tools", {}, [{"add": {"a": 17, "b": 25}}, "42"]),
    ("their-tools", {}, [{"divide": {"a": 1, "b": 0}, "nope": {}}, {"add": {"a": "x"}}, "41"]),
    ("their-tools", {"max_turns": 2}, [{"add": {"a": 1, "b": 2}}, {"add": {"a": 1, "b": 2}}]),
    ("their-tools", {"kind": "shelf"}, [{"put": {"key": "new", "value": "hat"}}, "done"]),
    ("their-tools", {"kind": "shelf"}, [{"take": {"key": "shoe"}}, {"take": {"key": "old"}}, "ok"]),
    ("their-quiz", {}, ["4", "please 6", "8"]),
    ("their-quiz", {}, ["4", "I give up"]),
    ("their-quiz", {"max_turns": 2}, ["please", "6"]),
]


@pytest.mark.parametrize(("id", "args", "script"), SCRIPTS)
def test_rewards_and_metrics_are_verifiers_own(
    id: str, args: dict[str, Any], script: list[Line]
) -> None:
    environment = load(id, **args)
    ours = play(environment, script)
    own, requests = asyncio.run(theirs(environment, script))
    assert own.get("error") is None
    assert ours.error is None, ours.error
    assert ours.score is not None
    assert ours.score.metrics["verifiers_reward"] == own["reward"]
    low, high = {"their-quiz": (-0.5, 2.0)}.get(id, (0.0, 1.0))
    assert ours.reward == pytest.approx((own["reward"] - low) / (high - low))
    said = {**ours.score.parts, **ours.score.metrics}
    assert {name: said[name] for name in own["metrics"]} == own["metrics"]
    # The model was shown the same: its answers, tool messages and tools included.
    shown = [plain(message) for message in requests[-1]["messages"]]
    assert [plain(m.to_openai()) for m in ours.messages][: len(shown)] == shown
    names = [tool["function"]["name"] for tool in requests[-1].get("tools", ())]
    assert names == list(environment.toolbox.tools)
    for offered, schema in zip(
        requests[-1].get("tools", ()), environment.toolbox.schemas(), strict=True
    ):
        assert offered["function"]["parameters"] == schema["function"]["parameters"]
        assert offered["function"]["description"] == schema["function"]["description"]


def plain(message: dict[str, Any]) -> tuple[Any, ...]:
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return message["role"], message.get("content") or "", calls, message.get("tool_call_id")


def test_rows_are_tasks() -> None:
    environment = load("their-words")
    tasks = list(environment.tasks("train"))
    assert [task.id for task in tasks] == ["train-0", "train-1", "train-2", "train-3"]
    assert tasks[1].prompt == [
        {"role": "system", "content": "Write the word backwards, in <answer> tags."},
        {"role": "user", "content": "Reverse: basket"},
    ]
    assert tasks[1].answer == "teksab"
    assert tasks[1].info["info"] == {"word": "basket"}
    assert [task.answer for task in environment.tasks("eval")] == ["rebme", "rehtaef"]
    assert list(load("their-words").tasks("train")) == tasks
    assert next(iter(load("their-words", with_eval=False).tasks("eval"))).id == "eval-0"


def test_results_of_tool_calls_are_reported() -> None:
    script: list[Line] = [
        {"add": {"a": 1, "b": 2}, "divide": {"a": 1, "b": 0}, "nope": {}},
        vf.Message("assistant", tool_calls=[vf.ToolCall("x", "add", "{")]),
        "42",
    ]
    trace = play(load("their-tools"), script)
    assert [(event.name, event.kind, event.turn) for event in trace.tool_events] == [
        ("add", "ok", 0),
        ("divide", "rejected", 0),
        ("nope", "unknown_tool", 0),
        ("add", "invalid_json", 1),
    ]
    assert trace.tool_events[1].detail == "ZeroDivisionError: division by zero"


def test_arguments_that_nest_too_deep_are_reported_to_the_model() -> None:
    call = vf.Message("assistant", tool_calls=[vf.ToolCall("x", "add", "[" * 100_000)])
    trace = play(load("their-tools"), [call, "42"])
    assert trace.error is None
    assert [event.kind for event in trace.tool_events] == ["invalid_json"]


def test_half_a_surrogate_pair_leaves_a_trace_that_can_be_saved() -> None:
    arguments = '{"key": "\\ud83d", "value": "hat"}'  # as in a call that ends amid an emoji
    call = vf.Message("assistant", tool_calls=[vf.ToolCall("x", "put", arguments)])
    trace = play(load("their-tools", kind="shelf"), [call, "done"])
    assert trace.messages[-2].content == "? is there"
    assert trace.reward == 1.0
    assert Trace.from_json(trace.to_json()) == trace


def test_a_dead_connection_is_no_part_of_the_task() -> None:
    trace = play(load("their-tools"), [{"look_up": {"word": "x"}}, "42"])
    assert trace.reward is None
    assert trace.error is not None
    assert (trace.error.boundary, trace.error.type) == ("tool", "ToolCallError")
    assert "ConnectionError: the dictionary is gone" in trace.error.message


def test_a_tool_call_where_there_are_no_tools_is_not_text() -> None:
    """A reward function gets text, as an API that reads no tool calls would give it."""
    environment = load("their-words")
    for call in (vf.ToolCall("x", "add", "{}"), vf.ToolCall("x", "", "<tool", malformed="cut")):
        trace = play(environment, [vf.Message("assistant", tool_calls=[call])])
        assert trace.score is not None, trace.error
        assert trace.score.metrics["length"] == 0.0


def test_limits_and_ends_are_distinguished() -> None:
    ends = {
        "their-words": (["x"], StopReason.TERMINATED, "max_turns_reached"),
        "their-tools": (["42"], StopReason.TERMINATED, "no_tools_called"),
        "their-quiz": (["4", "6", "8"], StopReason.TERMINATED, "has_final_env_response"),
    }
    for id, (script, reason, condition) in ends.items():
        trace = play(load(id), script)
        assert trace.stop_reason is reason
        assert trace.info["verifiers"] == {"stop_condition": condition}
    cut = play(load("their-quiz", max_turns=2), ["4", "6"])
    assert cut.stop_reason is StopReason.TRUNCATED
    assert cut.info["verifiers"] == {"stop_condition": "max_turns_reached"}


def test_our_own_limit_ends_their_rollout_in_order() -> None:
    their_quiz = importlib.import_module("their_quiz")

    environment = load("their-quiz")
    environment.max_turns = 1
    trace = play(environment, ["4"])
    assert trace.stop_reason is StopReason.MAX_TURNS
    assert trace.score is not None
    assert trace.score.metrics["verifiers_reward"] == pytest.approx(2 / 3)
    assert their_quiz.CLOSED == ["rollout", "rubric"]


@pytest.mark.slow
def test_a_time_limit_of_theirs_cuts_the_rollout() -> None:
    class Slow(vf.ScriptedModel):
        async def respond(self, conversation: Conversation, sampling: vf.Sampling) -> Reply:
            if conversation.turn:
                await asyncio.sleep(4.1)  # they look at the time between turns
            return await super().respond(conversation, sampling)

    environment = load("their-quiz", timeout_seconds=4)
    trace = asyncio.run(vf.rollout(environment, task_of(environment), Slow(["4", "6", "8"])))
    assert trace.stop_reason is StopReason.TRUNCATED
    assert trace.info["verifiers"] == {"stop_condition": "timeout_reached"}
    assert trace.score is not None
    assert trace.score.parts["solved"] == pytest.approx(1 / 3)


def test_what_they_clean_up_is_cleaned_up_when_the_model_fails() -> None:
    their_quiz = importlib.import_module("their_quiz")

    trace = play(load("their-quiz"), ["4"])  # the script has no second line
    assert trace.error is not None
    assert trace.error.boundary == "model"
    assert their_quiz.CLOSED == ["rollout"]


@pytest.mark.parametrize(
    ("said", "message"),
    [("crash", "the quizmaster fell over"), ("offline", "InfraError: the quiz server is gone")],
)
def test_what_their_environment_raises_earns_no_reward(said: str, message: str) -> None:
    trace = play(load("their-quiz"), [said])
    assert trace.reward is None
    assert trace.error is not None
    assert trace.error.boundary == "environment"
    assert message in trace.error.message


def test_rollouts_do_not_see_each_other() -> None:
    async def many() -> list[Trace]:
        environment = load("their-quiz")
        task = task_of(environment)
        scripts = [["4", "6", "8"], ["4", "I give up"], ["1", "2", "3"]]
        return await asyncio.gather(
            *(vf.rollout(environment, task, vf.ScriptedModel(script)) for script in scripts)
        )

    rewards = [trace.score and trace.score.parts["solved"] for trace in asyncio.run(many())]
    assert rewards == [pytest.approx(1.0), pytest.approx(1 / 3), 0.0]
