"""PettingZoo's environments: each agent a role, in AEC's order or all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import vf
from vf.bridges.gym.from_pettingzoo import PettingZooEnvironment

pytest.importorskip("pettingzoo")
TICTACTOE, RPS = "classic/tictactoe-v3", "classic/rps-v2"


def play(environment: PettingZooEnvironment, said: Sequence[str] | Callable[..., str]) -> vf.Trace:
    task = next(iter(environment.tasks("eval")))
    return asyncio.run(vf.rollout(environment, task, vf.ScriptedModel(said)))


def rewards(trace: vf.Trace) -> dict[str, float]:
    return {name: role.reward for name, role in trace.roles.items()}


def test_agents_of_an_aec_environment_take_turns_until_one_wins() -> None:
    trace = play(PettingZooEnvironment(TICTACTOE), ["0", "3", "1", "4", "2"])
    assert (trace.error, trace.stop_reason) == (None, vf.StopReason.TERMINATED)
    assert rewards(trace) == {"player_1": 1.0, "player_2": 0.0}
    first, second = trace.conversations
    assert "You are player_1." in first.messages[0].content
    assert "Allowed now: 0, 1, 2, 3, 4, 5, 6, 7, 8." in first.messages[0].content
    assert "Allowed now: 1, 2, 3, 4, 5, 6, 7, 8." in second.messages[0].content
    assert trace.info["pettingzoo"]["returns"] == {"player_1": 1.0, "player_2": -1.0}


def test_agents_of_a_parallel_environment_act_at_once() -> None:
    actions = ["rock", "paper", "scissors"]
    environment = PettingZooEnvironment(RPS, {"max_cycles": 2}, actions=actions)
    environment.players = {"player_1": ["rock", "rock"]}
    trace = play(environment, ["paper", "paper"])
    assert trace.error is None
    assert trace.info["pettingzoo"]["returns"] == {"player_0": 2.0, "player_1": -2.0}
    assert rewards(trace) == {"player_0": 1.0, "player_1": 0.0}
    assert [role.trained for role in trace.roles.values()] == [True, False]
    assert trace.info["pettingzoo"]["steps"] == 2


def test_an_action_that_is_not_allowed_is_asked_for_again_and_then_forfeits() -> None:
    environment = PettingZooEnvironment(TICTACTOE, retries=1)
    trace = play(environment, ["0", "0", "1", "0", "nothing"])
    told = [each.content for each in trace.conversations[1].messages if each.role == "user"]
    assert told[1].startswith("That action is not allowed now. Allowed now: 1, 2,")
    record = trace.info["pettingzoo"]
    assert record["forfeited"] == ["player_1"]
    assert record["lost_turns"] == {"player_1": 2, "player_2": 1}
    assert rewards(trace)["player_1"] == 0.0


def test_a_seed_gives_the_same_episode() -> None:
    environment = PettingZooEnvironment(TICTACTOE, num_train=3, num_eval=3)
    seeds = [task.info["seed"] for split in ("train", "eval") for task in environment.tasks(split)]
    assert len({*seeds}) == 6
    first, again = (play(environment, ["0", "3", "1", "4", "2"]) for _ in range(2))
    assert [each.messages for each in first.conversations] == [
        each.messages for each in again.conversations
    ]


@pytest.mark.parametrize(
    ("id", "args", "message"),
    [
        ("classic/no-such-game-v1", {}, "cannot make 'classic/no-such-game-v1': .* not found"),
        (TICTACTOE, {"args": {"colour": 1}}, "cannot make 'classic/tictactoe-v3': .*colour"),
        (TICTACTOE, {"api": "both"}, "api = 'both': write 'auto', 'aec' or 'parallel'"),
        (TICTACTOE, {"retries": -1}, "retries must be at least 0, got -1"),
        (TICTACTOE, {"returns": [1.0, 1.0]}, "returns"),
        (TICTACTOE, {"api": "parallel"}, "cannot make 'classic/tictactoe-v3'"),
        (lambda: None, {"args": {"a": 1}}, "args go with an id"),
    ],
)
def test_what_cannot_be_is_a_config_error(id: Any, args: dict[str, Any], message: str) -> None:
    with pytest.raises(vf.ConfigError, match=message):
        PettingZooEnvironment(id, **args)
