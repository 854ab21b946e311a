"""Environments of real OpenEnv servers: how a model acts there, its reward, bad input."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

import vf
from tests.bridges.openenv.openenv_play import all_closed, bisect, run, servers
from vf.bridges.openenv.actions import render_observation, render_tool_result
from vf.bridges.openenv.environment import OpenEnvEnvironment
from vf.runtime.errors import ConfigError
from vf.traces.messages import Message
from vf.traces.trace import StopReason


@pytest.fixture(scope="module")
def line() -> Iterator[str]:
    with servers.served(servers.line_app()) as url:
        yield url


@pytest.fixture(scope="module")
def desk() -> Iterator[str]:
    with servers.served(servers.desk_app()) as url:
        yield url


def hidden(environment: vf.Environment) -> int:
    seed = next(iter(environment.tasks("train"))).info["seed"]
    return random.Random(seed).randint(1, 8)


def test_a_reply_is_the_one_text_of_an_action(guess: str) -> None:
    environment = OpenEnvEnvironment(guess, num_train=3)
    for task in environment.tasks("train"):
        trace = run(environment, bisect, task)
        assert (trace.reward, trace.stop_reason) == (1.0, StopReason.TERMINATED)
        assert trace.messages[0].content == "Guess the number from 1 to 8.\n\nI think of a number."
        assert trace.messages[-1].content == "Right."
        assert int(trace.messages[-2].content) == random.Random(task.info["seed"]).randint(1, 8)
        record = trace.info["openenv"]
        assert (record["return"], record["done"], record["steps"]) == (1.0, True, len(trace.turns))
    assert environment.toolbox.schemas() == []
    assert all_closed()


def test_rewards_are_those_of_openenvs_own_client(guess: str) -> None:
    from openenv.core import GenericEnvClient

    environment = OpenEnvEnvironment(guess)
    task = next(iter(environment.tasks("train")))
    said = ["no number", "9", str(hidden(environment))]

    async def directly() -> list[float]:
        async with GenericEnvClient(base_url=guess) as client:
            await client.reset(seed=task.info["seed"])
            return [(await client.step({"message": message})).reward for message in said]

    trace = run(environment, said)
    assert trace.step_rewards == asyncio.run(directly()) == [-0.5, 0.0, 1.0]
    assert trace.reward == 0.5


@pytest.mark.parametrize(
    ("settings", "said", "reward"),
    [
        ({}, ["no", "RIGHT"], 0.5),
        ({"reward": "last"}, ["no", "RIGHT"], 1.0),
        ({"returns": (-1, 1)}, ["no", "RIGHT"], 0.75),
        ({"returns": (-1, 1), "max_turns": 2}, ["no", "no"], 0.0),  # not the server's end
        ({"returns": (0, 2), "max_turns": 2}, ["no", "no"], 0.0),
        ({"max_turns": 1}, ["9"], 0.0),
    ],
)
def test_what_a_return_is_worth(
    guess: str, settings: dict[str, Any], said: list[str], reward: float
) -> None:
    environment = OpenEnvEnvironment(guess, **settings)
    right = str(hidden(environment))
    assert run(environment, [word.replace("RIGHT", right) for word in said]).reward == reward


def test_an_action_of_several_fields_is_a_tool(line: str) -> None:
    environment = OpenEnvEnvironment(line, returns=(-10, 9), instructions="Go right to 4.")
    (schema,) = environment.toolbox.schemas()
    assert schema["function"]["name"] == "step"
    properties = schema["function"]["parameters"]["properties"]
    assert set(properties) == {"direction", "steps", "on"}
    assert properties["direction"]["enum"] == ["left", "right"]

    trace = run(
        environment,
        [
            "I go right.",
            {"step": {"direction": "up"}},
            {"step": {"direction": "right", "on": "some day"}},
            {"step": {"direction": "right", "steps": 3}},
            {"step": {"direction": "right"}},
        ],
    )
    told = [message.content for message in trace.messages if message.role in ("user", "tool")]
    assert told[0] == 'Go right to 4.\n\nplace: 0\nseen: ["a wall"]'
    assert told[1] == "Act by calling the tool 'step'."
    assert "'up' is not one of ['left', 'right']" in told[2]
    assert told[3] == "Error: the environment does not take this as an action"
    assert told[4] == "place: 3\nseen: []"
    assert trace.step_rewards == [0, 0, 0, -1, 9]
    assert trace.reward == pytest.approx((8 + 10) / 19)
    assert [event.kind for event in trace.tool_events] == [
        "invalid_arguments",
        "rejected",
        "ok",
        "ok",
    ]


def test_the_calls_of_one_turn_go_one_after_the_other_until_the_end(line: str) -> None:
    from vf.traces.messages import ToolCall

    calls = [
        ToolCall(f"c{i}", "step", json.dumps({"direction": "right", "steps": 3})) for i in range(3)
    ]
    environment = OpenEnvEnvironment(line, returns=(-10, 9))
    trace = run(environment, [Message("assistant", tool_calls=calls)])
    told = [message.content for message in trace.messages if message.role == "tool"]
    assert told == ["place: 3\nseen: []", "place: 6\nseen: []", "Error: the episode is over"]
    assert (trace.step_rewards, trace.stop_reason) == ([8.0], StopReason.TERMINATED)


def test_a_text_can_be_made_a_tool(guess: str) -> None:
    environment = OpenEnvEnvironment(guess, as_tool=True)
    trace = run(environment, [{"step": {"message": str(hidden(environment))}}])
    assert trace.reward == 1.0


def test_the_tools_of_an_mcp_environment_are_the_models(desk: str) -> None:
    environment = OpenEnvEnvironment(desk)
    names = [tool["function"]["name"] for tool in environment.toolbox.schemas()]
    assert names == ["add", "fail", "submit"]
    task = next(iter(environment.tasks("train")))
    numbers = random.Random(task.info["seed"])
    a, b = numbers.randint(1, 9), numbers.randint(1, 9)
    trace = run(
        environment,
        [
            {"add": {"a": a, "b": b}},
            {"add": {"a": "one", "b": b}},
            {"fail": {}},
            {"submit": {"answer": a + b}},
        ],
        task,
    )
    assert trace.error is None
    told = [message.content for message in trace.messages if message.role == "tool"]
    assert f"What is {a} + {b}?" in trace.messages[0].content
    assert told[0] == str(a + b)
    assert "'one' is not of type 'integer'" in told[1]
    assert told[2].startswith("Error: ")
    assert "nothing works" in told[2]
    assert told[3] == "submitted"
    assert (trace.reward, trace.stop_reason) == (1.0, StopReason.TERMINATED)
    assert run(environment, ["I give up."]).reward == 0.0


def test_a_client_of_the_environments_own_package(guess: str) -> None:
    from openenv.core.client_types import StepResult
    from openenv.core.env_client import EnvClient

    class GuessClient(EnvClient):  # type: ignore[misc]
        def _step_payload(self, action: Any) -> dict[str, Any]:
            return {"message": action.message}

        def _parse_result(self, payload: dict[str, Any]) -> Any:
            heard = servers.Heard(**payload["observation"])
            return StepResult(heard, payload["reward"], payload["done"])

        def _parse_state(self, payload: dict[str, Any]) -> Any:
            return payload

    environment = OpenEnvEnvironment(guess, client=GuessClient, action=servers.Say)
    assert run(environment, bisect).reward == 1.0


def test_what_a_class_of_actions_refuses_is_reported_to_the_model(line: str) -> None:
    from openenv.core.client_types import StepResult
    from openenv.core.env_client import EnvClient

    class LineClient(EnvClient):  # type: ignore[misc]
        def _step_payload(self, action: Any) -> dict[str, Any]:
            return dict(action.model_dump(mode="json"))

        def _parse_result(self, payload: dict[str, Any]) -> Any:
            place = servers.Place(**payload["observation"])
            return StepResult(place, payload["reward"], payload["done"])

        def _parse_state(self, payload: dict[str, Any]) -> Any:
            return payload

    environment = OpenEnvEnvironment(
        line, client=LineClient, action=servers.Go, returns=(-10, 9), max_turns=2
    )
    go = {"direction": "right", "on": "some day"}  # the schema says: a text
    trace = run(environment, [{"step": go}, {"step": go | {"on": "2026-01-02"}}])
    assert trace.error is None
    assert [event.kind for event in trace.tool_events] == ["rejected", "ok"]
    assert "does not take this as an action" in trace.messages[2].content


def test_arguments_of_reset_and_a_renderer_of_ones_own(guess: str) -> None:
    environment = OpenEnvEnvironment(
        guess,
        reset_args={"high": 1},
        render=lambda observation: observation["response"].upper(),
        instructions="",
    )
    trace = run(environment, ["1"])
    assert trace.messages[0].content == "I THINK OF A NUMBER."
    assert trace.reward == 1.0


def test_half_a_surrogate_pair_is_shown_as_what_a_trace_can_hold() -> None:
    half = "so\ud83d"
    told = render_observation({"a": half}), render_observation({"a": half, "b": 1})
    content = [{"type": "text", "text": half}]
    for text in (*told, render_tool_result({"result": {"content": content}})):
        assert "so?" in text


def test_seeds_are_in_one_split_only(guess: str) -> None:
    environment = OpenEnvEnvironment(guess, num_train=30, num_eval=30)
    train, held_out = (
        {task.info["seed"] for task in environment.tasks(split)} for split in ("train", "eval")
    )
    assert len(train) == len(held_out) == 30
    assert not train & held_out


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"url": "localhost:8000"}, "is not a server's address"),
        ({"url": "http://127.0.0.1:9"}, "no OpenEnv server answers at http://127.0.0.1:9/schema"),
        ({"text_field": "mesage"}, "Did you mean 'message'"),
        ({"text_field": "message", "as_tool": True}, "exclude each other"),
        ({"returns": [1, 1]}, "returns must be (worst, best)"),
        ({"reward": "mean"}, "reward must be 'sum' or 'last'"),
        ({"max_turns": 0}, "max_turns must be at least 1"),
        ({"message_timeout": 0}, "message_timeout must be positive"),
        ({"num_train": 0}, "num_train and num_eval must be at least 1"),
        ({"client": int}, "client needs action"),
        ({"reset_args": {"seed": 1}}, "the seed is the task's"),
    ],
)
def test_bad_input(guess: str, settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match="openenv") as caught:
        OpenEnvEnvironment(**{"url": guess, **settings})
    assert told in str(caught.value)


def test_fields_that_a_text_cannot_fill(line: str, desk: str) -> None:
    with pytest.raises(ConfigError, match="the field 'steps' of an action holds no text"):
        OpenEnvEnvironment(line, text_field="steps")
    with pytest.raises(ConfigError, match="is an MCP environment"):
        OpenEnvEnvironment(desk, as_tool=True)


def test_it_is_found_by_its_name(guess: str) -> None:
    environment = vf.make(f"openenv:{guess}", num_train=1)
    assert run(environment, bisect).reward == 1.0
