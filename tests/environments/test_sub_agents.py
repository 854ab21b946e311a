"""Sub-agents as tools: nested conversations of the same model, recorded, limited and trained."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

import vf
from tests.environments.test_long_episodes import RENDERER, Recorder
from tests.inference.tiny_serving import load_model, plain_logprobs, running_engine, running_server
from tests.waiting import Clock
from vf.inference.completions import Completion
from vf.inference.models.token_model import TokenModel
from vf.inference.token_client import TokenClient
from vf.runtime.own_deadline import own_deadline
from vf.traces.messages import ToolCall

TASK = vf.Task("t", "What is in the box?")


class Boxes(vf.Environment):
    """Something is in a box, and only the assistant can look."""

    tool_timeout = 20.0

    def __init__(self, **settings: Any) -> None:
        self.agent = vf.SubAgent(
            "assistant", "Has somebody look.", system_prompt="Look.", tools=[self.look], **settings
        )
        self.tools = [self.agent]

    def reset(self, task: vf.Task) -> list[vf.Message]:
        self.content = "a key"
        return self.first_messages(task)

    def look(self, place: str) -> str:
        """Look somewhere.

        Args:
            place: Where.
        """
        if place == "wall":
            raise RuntimeError("it broke")
        return self.content if place == "box" else "nothing"

    async def step(self, reply: vf.Message) -> vf.Step:
        step = await self.run_tools(reply)
        step.reward = 0.25 if reply.tool_calls else 0.5
        return step


def run(environment: vf.Environment, script: Any, sampling: vf.Sampling | None = None) -> vf.Trace:
    model = script if hasattr(script, "respond") else vf.ScriptedModel(script)
    trace = asyncio.run(vf.rollout(environment, TASK, model, sampling=sampling, seed=3))
    assert vf.Trace.from_json(trace.to_json()) == trace
    return trace


def asks(text: str = "Look into the box.") -> dict[str, dict[str, str]]:
    return {"assistant": {"task": text}}


def said(trace: vf.Trace, place: int) -> list[tuple[str, str]]:
    return [(each.role, each.content) for each in trace.conversations[place].messages]


def test_the_last_answer_of_a_nested_conversation_is_the_tools_result() -> None:
    trace = run(Boxes(), [asks(), {"look": {"place": "box"}}, "A key.", "It is a key."])
    assert said(trace, 0) == [
        ("user", "What is in the box?"),
        ("assistant", ""),
        ("tool", "A key."),
        ("assistant", "It is a key."),
    ]
    assert said(trace, 1) == [
        ("system", "Look."),
        ("user", "Look into the box."),
        ("assistant", ""),
        ("tool", "a key"),
        ("assistant", "A key."),
    ]
    main, nested = trace.lineages
    assert (main.turns, nested.turns) == ([0, 3], [1, 2])
    assert (main.role, nested.role) == ("", "assistant")
    assert trace.messages == main.messages
    assert [(event.name, event.turn) for event in trace.tool_events] == [
        ("assistant", 0),
        ("look", 1),
    ]
    assert trace.step_rewards == [0.25, 0.0, 0.0, 0.5]
    assert trace.reward == 0.75
    assert [(fork.kind, fork.turn) for fork in trace.forks] == [("conversation", 1)]
    assert trace.timing["sub_agents"] > 0


@dataclass
class Paced:
    """Answers the first question last, and says how many it was asked at the same time."""

    most: int = 0
    seeds: list[int | None] = field(default_factory=list)
    _now: int = 0

    async def respond(self, conversation: vf.Conversation, sampling: vf.Sampling) -> vf.Reply:
        self._now += 1
        self.most = max(self.most, self._now)
        self.seeds.append(sampling.seed)
        asked = conversation.messages[-1].content
        await asyncio.sleep(0.05 if asked == "1" else 0.0)
        self._now -= 1
        calls = [ToolCall(f"c{n}", "assistant", json.dumps({"task": str(n)})) for n in (1, 2, 3)]
        if asked == TASK.prompt:
            return vf.Reply(vf.Message("assistant", tool_calls=calls))
        return vf.Reply(vf.Message("assistant", f"answer {asked}"))


def test_several_calls_take_place_at_once_and_are_recorded_in_their_order() -> None:
    model = Paced()
    trace = run(Boxes(), model)
    assert model.most == 3
    assert len({*model.seeds}) == 5
    assert [each.content for each in trace.messages[2:5]] == [f"answer {n}" for n in (1, 2, 3)]
    assert [each.turns for each in trace.lineages] == [[0, 4], [1], [2], [3]]
    assert [said(trace, n)[1] for n in (1, 2, 3)] == [("user", str(n)) for n in (1, 2, 3)]


class Insists(Boxes):
    """Asks the assistant twice itself after every answer: the shipped model would not."""

    max_turns = 2

    async def step(self, reply: vf.Message) -> vf.Step:
        calls = [
            ToolCall(f"c{n}", "assistant", json.dumps({"task": f"Look, {self.turn} {n}. " * 20}))
            for n in range(2)
        ]
        results = await self.toolbox.run(calls, turn=self.turn, timeout=self.tool_timeout)
        return vf.Step("\n".join(each.content for each in results))


@pytest.mark.slow
@pytest.mark.gate
def test_each_sampled_token_is_recorded_once_as_the_engine_gave_it() -> None:
    async def main(url: str) -> tuple[vf.Trace, list[tuple[list[int], Completion]]]:
        recorder = Recorder(TokenClient.to(url, "tiny", max_retries=0))
        model = TokenModel(recorder, RENDERER, max_seq_len=640, max_prompt_len=160)
        sampling = vf.Sampling(24, 1.5)
        environment = Insists(max_turns=2)
        try:
            trace = await vf.rollout(environment, TASK, model, sampling=sampling, seed=1)
        finally:
            await recorder.client.close()
        return trace, recorder.said

    with running_engine(load_model(), max_seq_len=640) as engine:
        with running_server(engine, RENDERER) as url:
            trace, said = asyncio.run(main(url))
        assert trace.error is None
        assert len(trace.branches) == 5  # its own, and two for each of its two answers
        assert sum(sum(each.loss_mask) for each in trace.branches) == trace.completion_tokens
        assert len(said) == len(trace.turns)
        found = set()
        for turn in range(len(trace.turns)):
            [branch] = [each for each in trace.branches if turn in each.turn_index]
            pairs = enumerate(zip(branch.turn_index, branch.loss_mask, strict=True))
            places = [place for place, (index, mask) in pairs if mask and index == turn]
            [(number, completion)] = [
                (number, completion)
                for number, (prompt, completion) in enumerate(said)
                if prompt == branch.token_ids[: places[0]]
            ]
            found.add(number)
            assert [branch.token_ids[place] for place in places] == completion.token_ids
            assert [branch.logprobs[place] for place in places] == completion.logprobs
            prompt = branch.token_ids[: places[0]]
            plain = plain_logprobs(engine, prompt, completion.token_ids, 1.5)
            assert completion.logprobs == pytest.approx(plain, abs=1e-3)
        assert len(found) == len(said)
    for each in trace.lineages:
        for turn in each.turns:
            assert turn in trace.branches[each.branches[0]].turn_index


@dataclass
class Counted:
    """Calls until it has no tools left to call, in answers of ten tokens each."""

    script: Callable[[list[vf.Message]], Any]

    async def respond(self, conversation: vf.Conversation, sampling: vf.Sampling) -> vf.Reply:
        reply = await vf.ScriptedModel(self.script).respond(conversation, sampling)
        reply.completion_tokens = min(10, sampling.max_tokens)
        return reply


def restless(messages: list[vf.Message]) -> Any:
    """Look on and on as the assistant; as its caller, ask again after an error."""
    if messages[0].role == "system":
        return {"look": {"place": "shelf"}}
    return asks() if len(messages) < 4 else "I do not know."


@pytest.mark.parametrize(
    ("settings", "whole", "words", "tokens"),
    [
        ({"max_turns": 3}, None, "assistant gave no answer: it needed more than its 3 answers", 90),
        ({"max_tokens": 25}, None, "assistant gave no answer: it had no tokens left", 80),
        ({"max_tokens": 25}, 31, "assistant gave no answer: it had no tokens left", 31),
        ({"max_turns": 1, "max_calls": 1}, None, "assistant can be called only 1 times", 40),
    ],
)
def test_a_limit_is_reported_to_the_caller_and_the_episode_is_scored(
    settings: dict[str, int], whole: int | None, words: str, tokens: int
) -> None:
    environment = Boxes(**settings)
    environment.max_tokens = whole
    trace = run(environment, Counted(restless))
    assert trace.reward is not None
    results = [each.content for each in trace.messages if each.role == "tool"]
    assert results[-1] == f"Error: {words}"
    events = [event.kind for event in trace.tool_events if event.name == "assistant"]
    assert events == ["rejected"] * len(events)
    assert trace.completion_tokens == tokens
    assert (trace.stop_reason is vf.StopReason.MAX_TOKENS) is (whole is not None)


class Slow(Boxes):
    """Its assistant's tool takes so many seconds."""

    def __init__(self, clock: Clock, seconds: float, **settings: Any) -> None:
        super().__init__(**settings)
        self.clock, self.seconds = clock, seconds

    async def look(self, place: str) -> str:  # type: ignore[override]
        """Look somewhere.

        Args:
            place: Where.
        """
        await self.clock.skip(self.seconds)
        return "nothing"


def looks_twice(messages: list[vf.Message]) -> Any:
    if messages[0].role == "system":
        return {"look": {"place": "shelf"}} if len(messages) < 6 else "Nothing."
    return asks() if len(messages) == 1 else "Done."


def test_the_clocks_around_it_do_not_count_its_answers(clock: Clock) -> None:
    async def served(messages: list[vf.Message]) -> Any:
        with own_deadline():
            await clock.skip(1000.0)
        return looks_twice(messages)

    environment = Boxes(timeout=100.0)
    environment.tool_timeout = 90.0
    environment.timeout = 200.0
    trace = run(environment, vf.ScriptedModel(served))
    assert trace.error is None
    assert trace.messages[2].content == "Nothing."


def test_slow_tools_end_it_and_the_episode_is_scored(clock: Clock) -> None:
    environment = Slow(clock, 20.0, timeout=50.0, max_turns=100)
    environment.tool_timeout = 45.0
    trace = run(environment, restless)
    results = [each.content for each in trace.messages if each.role == "tool"]
    assert results == ["Error: assistant gave no answer: it ran out of time"] * 2
    assert trace.reward == 1.0


def test_all_together_get_half_of_the_rollouts_time(clock: Clock) -> None:
    environment = Slow(clock, 100.0)
    environment.timeout = 160.0
    trace = run(
        environment, lambda messages: looks_twice(messages) if len(messages) < 4 else "Done."
    )
    assert trace.error is None
    assert trace.messages[2].content == "Error: assistant gave no answer: it ran out of time"
    [event] = [each for each in trace.tool_events if each.name == "look"]
    assert (event.kind, event.detail) == ("error", "cancelled")


def test_a_failure_in_it_is_the_rollouts_and_what_was_sampled_is_kept() -> None:
    trace = run(Boxes(), [asks(), {"look": {"place": "wall"}}])
    assert trace.error is not None
    assert trace.error.boundary == "tool"
    assert trace.reward is None
    assert len(trace.turns) == 2
    assert said(trace, 1)[-1] == ("assistant", "")

    trace = run(Boxes(), [asks()])
    assert trace.error is not None
    assert (trace.error.boundary, trace.error.message) == (
        "model",
        "the script has no line for turn 1",
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"name": "my helper"}, "name = 'my helper': write letters"),
        ({"description": " "}, "description is empty"),
        ({"max_turns": 0}, "max_turns = 0 must be a positive whole number"),
        ({"max_tokens": 1.5}, "max_tokens = 1.5 must be"),
        ({"max_calls": 0}, "max_calls = 0 must be"),
        ({"timeout": 0}, "timeout = 0 must be a positive number of seconds"),
        ({"tools": "search"}, "tools must be a list, got 'search'"),
        ({"system_prompt": 3}, "system_prompt must be text, got 3"),
        ({"tools": [lambda x: x]}, "parameter 'x' has no type"),
        ({"tools": [vf.SubAgent("inner", "Helps.")]}, "tools holds 'inner': a sub-agent has no"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(vf.ConfigError, match=re.escape(words)):
        vf.SubAgent(**{"name": "helper", "description": "Helps."} | settings)


def test_a_timeout_below_that_of_a_tool_is_named() -> None:
    with pytest.raises(vf.ConfigError, match=r"timeout = 10 must be more than .*tool_timeout = 20"):
        run(Boxes(timeout=10), ["x"])


def test_where_nobody_could_play_it_says_so() -> None:
    class Roles(vf.MultiAgentEnvironment):
        roles = {"ann": vf.Role(tools=[vf.SubAgent("helper", "Helps.")])}

    with pytest.raises(vf.ConfigError, match="'helper': a role cannot have a sub-agent"):
        asyncio.run(Roles().check())

    alone = Boxes().episode(0)
    call = ToolCall("c", "assistant", json.dumps({"task": "Look."}))
    with pytest.raises(vf.ConfigError, match="there is no model to play it"):
        asyncio.run(alone.toolbox.run([call], turn=0, timeout=1.0))

    model = vf.ScriptedModel([asks()])
    model.one_conversation = True  # type: ignore[attr-defined]
    with pytest.raises(vf.ConfigError, match="whoever answers here has only one"):
        run(Boxes(), model)
