"""What an author can set of a Gymnasium environment: actions, words, returns; what is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import vf
from tests.bridges.gym.playing import (
    CLIFF,
    DRY,
    LAKE,
    Lights,
    play,
)
from vf.bridges.gym.from_gym import GymEnvironment
from vf.bridges.gym.games import binned, default_render
from vf.bridges.gym.moves import NamedMoves


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("left", 0),
        ("LEFT.", 0),
        ("I go down, carefully.", 1),
        ("Not left, not up. Action: right", 2),
        ("action = up", 3),
        ("2", 2),
        ("Action: 3 ", 3),
        ("**down**", 1),
        ("down, down, down", 1),
        ("upwards", None),
        ("", None),
        ("left or right", None),
        ("Action: left or right", None),
        ("4", None),
        ("-1", None),
        ("go 2 steps", None),
        ("\x00\ud83d", None),
        ("9" * 5000, None),
    ],
)
def test_a_reply_names_one_action_or_the_turn_is_lost(reply: str, action: int | None) -> None:
    moves = NamedMoves(LAKE)
    if action is None:
        with pytest.raises(ValueError, match="Reply with one action: left, down, right, up"):
            moves(reply)
    else:
        assert moves(reply) == action
    trace = play(GymEnvironment("FrozenLake-v1", DRY, max_turns=1), [reply])
    assert trace.info["gym"]["lost_turns"] == (action is None)
    assert trace.info["gym"]["steps"] == (action is not None)


def test_numbers_are_actions_where_they_have_no_names() -> None:
    environment = GymEnvironment(CLIFF, returns=[-100, -13])
    assert environment.instructions.endswith("Reply with one action a turn: 0, 1, 2, 3.")
    trace = play(environment, ["Up: 0", *["1"] * 11, "2"])
    assert trace.info["gym"]["return"] == -13
    assert trace.reward == 1.0
    assert "x  C  C" in trace.messages[0].content


@pytest.mark.parametrize(
    ("returned", "worth"), [(-10.0, 0.0), (0.0, 0.0), (5.0, 0.5), (10.0, 1.0), (11.0, 1.0)]
)
def test_the_outcome_is_the_authors_share_of_the_return(returned: float, worth: float) -> None:
    environment = GymEnvironment("CartPole-v1", returns=(0, 10))
    trace = vf.Trace("gym", next(environment.tasks("train")), seed=0)
    trace.info["gym"] = {"return": returned, "terminated": True, "truncated": False}
    assert environment.outcome(trace) == worth


def test_render_and_parse_are_the_authors() -> None:
    def parse(reply: str) -> int:
        return {"nach links": 0, "nach rechts": 1, "nirgendwohin": 7}[reply]

    environment = GymEnvironment(
        "CartPole-v1",
        render=lambda observation, env: f"Neigung {observation[2]:+.1f}",
        parse=parse,
        rules="Halte den Stab.",
        actions=["nach links", "nach rechts"],
        max_turns=3,
    )
    trace = play(environment, ["nach rechts", "rechts", "nirgendwohin"])
    assert trace.messages[0].content.startswith(
        "Halte den Stab.\n\nActions: nach links, nach rechts.\n\nNeigung +0."
    )
    assert [m.content for m in trace.messages[4::2]] == ["That is not one of the actions."] * 2
    assert trace.info["gym"]["lost_turns"] == 2


def test_a_fault_in_render_or_parse_earns_no_reward() -> None:
    def parse(reply: str) -> int:
        raise AttributeError("a fault of the author's")

    environment = GymEnvironment("CartPole-v1", parse=parse)
    trace = asyncio.run(
        vf.rollout(environment, next(environment.tasks("train")), vf.ScriptedModel(["left"]))
    )
    assert trace.reward is None
    assert trace.error is not None
    assert trace.error.boundary == "environment"


@pytest.mark.parametrize(
    ("space", "legal", "illegal"),
    [
        (spaces.MultiBinary(2), "1 and 0", ["2 0", "1", "1 0 1", "one, zero", "9" * 20]),
        (spaces.MultiDiscrete([3, 2]), "Action: 2, 1", ["3 0", "2, 2", "-1 0"]),
    ],
)
def test_actions_of_several_dimensions_are_numbers(
    space: Any, legal: str, illegal: list[str]
) -> None:
    environment = GymEnvironment(lambda: Lights(space), returns=[0, 1])
    trace = play(environment, [*illegal, legal])
    assert trace.reward == 1.0
    assert trace.info["gym"]["lost_turns"] == len(illegal)
    assert "Reply with 2 whole numbers, of 0 to" in trace.messages[2].content
    assert trace.messages[0].content.endswith("Observation: heat: 1.5, on: 0, 0") or trace.messages[
        0
    ].content.endswith("Observation: on: 0, 0, heat: 1.5")


def test_a_wrapper_makes_it_another_game() -> None:
    def flipped() -> gymnasium.Env[Any, Any]:
        env = gymnasium.make("CartPole-v1")
        return gymnasium.wrappers.TransformAction(
            env, lambda a: 2 - int(a), spaces.Discrete(2, start=1)
        )

    environment = GymEnvironment(flipped, returns=[0, 20], max_turns=20)
    assert "Reply with one action a turn: 1, 2." in environment.instructions
    assert play(environment, ["1"] * 20).info["gym"]["steps"] > 5


def test_colours_become_brackets() -> None:
    env = gymnasium.make("FrozenLake-v1", render_mode="ansi")
    env.reset(seed=0)
    assert default_render(0, env).splitlines()[-4:] == ["[S]FFF", "FHFH", "FFFH", "HFFG"]
    env.close()


def test_bins_have_ends_and_a_middle() -> None:
    render = binned({"x": 2.0, "y": 1.0}, bins=5)
    env: Any = None
    assert render(np.array([0.0, 9.0]), env) == "x: 0, y: 2 (each from -2 to 2)"
    assert render(np.array([-1.0, -np.inf]), env) == "x: -1, y: -2 (each from -2 to 2)"
    with pytest.raises(vf.ConfigError, match="odd"):
        binned({"x": 1.0}, bins=4)
    with pytest.raises(vf.ConfigError, match="'x' must end above 0"):
        binned({"x": 0.0})


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"gymnasium_id": "Pendulum-v1"}, "Pendulum-v1 needs continuous actions"),
        ({"gymnasium_id": "FrozenLak-v1"}, "Did you mean: `FrozenLake`"),
        ({"gymnasium_id": "FrozenLake-v99"}, "v99"),
        ({"gymnasium_id": "not an id!"}, "Malformed environment ID"),
        ({"gymnasium_id": "no_such_module:X-v0"}, "cannot make 'no_such_module:X-v0'"),
        (
            {"gymnasium_id": "CartPole-v1", "args": {"wind": 1}},
            "unexpected keyword argument 'wind'",
        ),
        ({"gymnasium_id": "MountainCar-v0"}, r"returns = \[-200, -100\]"),
        ({"gymnasium_id": "CartPole-v1", "actions": ["left"]}, "must be 2 different names"),
        ({"gymnasium_id": "CartPole-v1", "actions": ["a", "A"]}, "must be 2 different names"),
        ({"gymnasium_id": "CartPole-v1", "returns": [1]}, "must be two numbers"),
        ({"gymnasium_id": "CartPole-v1", "returns": [5, 5]}, r"must be \(worst, best\)"),
        ({"gymnasium_id": "CartPole-v1", "max_turns": 0}, "max_turns must be at least 1"),
        ({"gymnasium_id": "CartPole-v1", "num_eval": 0}, "num_train and num_eval"),
        ({"gymnasium_id": lambda: 5}, "the function returned int"),
        ({"gymnasium_id": lambda: 5, "args": {"a": 1}}, "args go with an id"),
        ({"gymnasium_id": lambda: Lights(spaces.Tuple((spaces.Discrete(2),)))}, "only Discrete"),
        ({"gymnasium_id": lambda: Lights(spaces.Box(0, 1))}, "Lights needs continuous actions"),
        (
            {"gymnasium_id": "vf/GuessNumber-v0", "actions": ["a"]},
            "actions can be named in a Discrete space only",
        ),
    ],
)
def test_what_cannot_be_played_is_a_config_error(args: dict[str, Any], message: str) -> None:
    with pytest.raises(vf.ConfigError, match=message):
        vf.make("gym", **args)


def test_no_environment_is_left_open() -> None:
    open_now: list[object] = []

    class Counted(Lights):
        def __init__(self) -> None:
            super().__init__(spaces.Discrete(2))
            open_now.append(self)

        def close(self) -> None:
            open_now.remove(self)

    environment = GymEnvironment(Counted, returns=[0, 1])
    assert open_now == []
    assert play(environment, ["x", "1"]).reward == 1.0
    asyncio.run(vf.rollout(environment, next(environment.tasks("train")), vf.ScriptedModel([])))
    assert open_now == []
