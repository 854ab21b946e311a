"""Gymnasium's own games, played by scripted models."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import vf
from tests.bridges.gym.playing import (
    CAB,
    CLIFF,
    DRY,
    LAKE,
    TAXI,
    blackjack,
    play,
    shortest,
    solver,
)
from vf.bridges.gym.from_gym import GymEnvironment
from vf.bridges.gym.games import known_game
from vf.inference.models.scripted_model import Line
from vf.traces.trace import StopReason


def test_frozen_lake_is_crossed() -> None:
    environment = GymEnvironment("FrozenLake-v1", DRY)
    script = solver("FrozenLake-v1", LAKE, 0, **DRY)
    trace = play(environment, script)
    assert trace.reward == 1.0
    assert trace.stop_reason is StopReason.TERMINATED
    assert trace.info["gym"] == {
        "return": 1.0,
        "steps": len(script),
        "lost_turns": 0,
        "terminated": True,
        "truncated": False,
    }
    first = trace.messages[0].content
    assert "Reply with one action a turn: left, down, right, up." in first
    assert first.endswith(
        "[S]  F   F   F\n F   H   F   H\n F   F   F   H\n H   F   F   G\n"
        "You stand on [ ], in row 1, column 1."
    )
    assert "in row 4, column 4" in trace.messages[-1].content


def test_falling_into_a_hole_is_worth_nothing() -> None:
    trace = play(GymEnvironment("FrozenLake-v1", DRY), ["right", "down"])
    assert trace.reward == 0.0
    assert trace.stop_reason is StopReason.TERMINATED
    assert "[H]" in trace.messages[-1].content


@pytest.mark.parametrize("index", range(6))
def test_taxi_brings_the_passenger_home(index: int) -> None:
    environment = GymEnvironment(TAXI)
    [task] = list(environment.tasks("eval"))[index : index + 1]
    trace = play(environment, solver(TAXI, CAB, task.info["seed"]), split="eval", index=index)
    assert trace.reward == 1.0
    assert re.search(r"The passenger is at [RGYB] \(row \d", trace.messages[0].content)
    assert any("The passenger is in the taxi" in m.content for m in trace.messages)
    assert play(environment, ["dropoff"] * 200).reward == 0.0


def test_no_shortest_way_of_a_taxi_is_worth_less_than_all() -> None:
    env: Any = gymnasium.make(TAXI).unwrapped
    starts = np.flatnonzero(env.initial_state_distrib)
    lengths = [len(shortest(env, int(state))) for state in starts]
    game = known_game(gymnasium.make(TAXI))
    assert game is not None
    assert game.returns == (0.0, 20 - (max(lengths) - 1))


def test_blackjack_pays_what_the_cards_say() -> None:
    environment = GymEnvironment("Blackjack-v1")
    traces = [play(environment, blackjack, index=index) for index in range(40)]
    worth = {-1.0: 0.0, 0.0: 0.5, 1.0: 1.0}
    assert {t.info["gym"]["return"] for t in traces} == set(worth)
    assert all(t.reward == worth[t.info["gym"]["return"]] for t in traces)
    assert len({t.messages[0].content for t in traces}) > 10
    assert "The dealer shows" in traces[0].messages[0].content


def balance(messages: list[vf.Message]) -> Line:
    numbers = dict(re.findall(r"(pole \w+|cart \w+): (-?\d)", messages[-1].content))
    lean = 2 * int(numbers["pole angle"]) + int(numbers["pole velocity"])
    return "Action: right" if lean + 0.3 * int(numbers["cart velocity"]) > 0 else "Action: left"


def test_cartpole_can_be_balanced_by_its_bins() -> None:
    environment = GymEnvironment("CartPole-v1", max_turns=200)
    balanced = [play(environment, balance, index=index) for index in range(4)]
    assert [trace.reward for trace in balanced] == [1.0] * 4
    assert {trace.stop_reason for trace in balanced} == {StopReason.MAX_TURNS}
    assert GymEnvironment("CartPole-v1", max_turns=900).returns == (0.0, 500.0)
    fallen = play(environment, lambda messages: "left")
    assert fallen.stop_reason is StopReason.TERMINATED
    assert fallen.reward == fallen.info["gym"]["return"] / 200 < 0.1


def test_what_gymnasium_cuts_short_is_truncated() -> None:
    args = DRY | {"max_episode_steps": 3}
    trace = play(GymEnvironment("FrozenLake-v1", args), ["left"] * 9)
    assert trace.stop_reason is StopReason.TRUNCATED
    assert trace.info["gym"]["truncated"]
    assert len(trace.turns) == 3
    trace = play(GymEnvironment("FrozenLake-v1", DRY, max_turns=2), ["left"] * 9)
    assert trace.stop_reason is StopReason.MAX_TURNS
    assert not trace.info["gym"]["truncated"]


def test_never_acting_earns_nothing_where_every_step_costs() -> None:
    for id, returns in ((CLIFF, [-100, -13]), ("Blackjack-v1", None)):
        trace = play(GymEnvironment(id, returns=returns, max_turns=3), ["hm"] * 3)
        assert trace.info["gym"]["lost_turns"] == 3
        assert trace.info["gym"]["return"] == 0.0
        assert trace.reward == 0.0


def test_an_episode_that_a_limit_ends_before_it_began_is_scored() -> None:
    environment = GymEnvironment("Blackjack-v1")
    trace = vf.Trace("gym", next(environment.tasks("train")), seed=0)
    assert asyncio.run(environment.rubric.score(trace)).reward == 0.0


def test_tasks_are_seeds_and_no_seed_is_in_both_splits() -> None:
    environment = GymEnvironment("Blackjack-v1", num_train=300, num_eval=300)
    train, held_out = (
        [task.info["seed"] for task in environment.tasks(split)] for split in ("train", "eval")
    )
    assert len({*train, *held_out}) == 600
    assert train == [task.info["seed"] for task in environment.tasks("train")]
    assert train != [t.info["seed"] for t in GymEnvironment("Blackjack-v1", seed=1).tasks("train")]
    first, again = (play(environment, blackjack, index=5) for _ in range(2))
    assert first.messages == again.messages


def test_a_text_environment_is_played_as_it_is() -> None:
    trace = play(vf.make("gym", gymnasium_id="vf/GuessNumber-v0"), ["50", "x", *["1"] * 5])
    assert "I think of a whole number" in trace.messages[0].content
    assert trace.messages[2].content in ("Higher.", "Lower.")
    assert trace.messages[4].content == "Reply with exactly one number."
    assert trace.stop_reason is StopReason.TRUNCATED


def test_a_game_in_text_is_a_true_gymnasium_environment_again() -> None:
    env = gymnasium.make("vf/Gym-v0", gymnasium_id="FrozenLake-v1", args=DRY)
    check_env(env.unwrapped)
    observation, _ = env.reset(seed=1)
    assert "[S]  F   F   F" in observation
    for move in solver("FrozenLake-v1", LAKE, 0, **DRY):
        _, reward, terminated, truncated, _ = env.step(move)
    assert (reward, terminated, truncated) == (1.0, True, False)
    env.close()
