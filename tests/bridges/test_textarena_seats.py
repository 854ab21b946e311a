"""TextArena's games with every seat played and trained."""

from __future__ import annotations

import asyncio
import random
import re
from typing import Any

import pytest

import vf
from tests.late import Late
from vf.inference.models.scripted_model import Script
from vf.traces.messages import Message

ta = Late("textarena")

FAILS = "[" + "9" * 5000 + "]"  # more digits than Python turns into a number


def make(game: str, **settings: Any) -> Any:
    return vf.make(f"textarena:{game}", opponent="policy", num_train=4, num_eval=4, **settings)


def play(environment: vf.Environment, script: Script, index: int = 0) -> vf.Trace:
    task = [*environment.tasks("train")][index]
    return asyncio.run(vf.rollout(environment, task, vf.ScriptedModel(script), seed=index))


def moves_of(trace: vf.Trace) -> dict[str, list[str]]:
    """Return what each role said."""
    return {
        str(lineage.role): [m.content for m in lineage.messages if m.role == "assistant"]
        for lineage in trace.lineages
    }


def bracketed(messages: list[Message]) -> str:
    """Draw one of the moves in the latest message that shows any."""
    for message in reversed(messages):
        shown: list[str] = re.findall(
            r"\[[^\[\]\n]+\]", re.sub(r"(?m)^\[[^\]]*\]", "", message.content)
        )
        if message.role == "user" and shown:
            return random.Random(str(messages[-1].content)).choice(list(dict.fromkeys(shown)))
    return "[]"


@pytest.mark.parametrize(
    ("game", "players"),
    [("TicTacToe-v0", 2), ("KuhnPoker-v0", 2), ("ThreePlayerTicTacToe-v0", 3)],
)
def test_the_same_moves_get_what_textarena_itself_gives(game: str, players: int) -> None:
    environment = make(game)
    for index, task in enumerate(environment.tasks("train")):
        trace = play(environment, bracketed, index)
        assert trace.error is None
        assert list(trace.roles) == [f"player_{seat}" for seat in range(players)]
        env = ta.make(game)
        env.reset(num_players=players, seed=task.info["seed"])
        moves = {role: iter(said) for role, said in moves_of(trace).items()}
        done = False
        while not done:
            seat, _ = env.get_observation()
            done, _ = env.step(action=next(moves[f"player_{seat}"]))
        rewards, _ = env.close()
        for seat, reward in rewards.items():
            role = trace.roles[f"player_{seat}"]
            assert role.reward == pytest.approx((reward + 1) / 2)
            assert (role.player, role.trained) == ("policy", True)
        assert all(next(rest, None) is None for rest in moves.values())


def test_a_role_sees_only_what_is_new_to_it() -> None:
    trace = play(make("TicTacToe-v0"), ["[0]", "[3]", "[1]", "[4]", "[2]"])
    assert moves_of(trace) == {"player_0": ["[0]", "[1]", "[2]"], "player_1": ["[3]", "[4]"]}
    told = [m.content for m in trace.lineages[1].messages if m.role == "user"]
    assert [text.count("[Player 0]") for text in told] == [1, 1, 1], "each of its moves, once"
    assert [text.count("[Player 1]") for text in told] == [0, 0, 0]
    assert trace.info["textarena"]["rewards"] == {"player_0": 1.0, "player_1": -1.0}


def test_an_invalid_move_is_decided_by_the_game() -> None:
    trace = play(make("TicTacToe-v0"), ["[0]", "nonsense", "nonsense"])
    assert {name: role.reward for name, role in trace.roles.items()} == {
        "player_0": 1.0,
        "player_1": 0.0,
    }
    assert trace.info["textarena"]["invalid_moves"] == ["player_1"]


def test_a_move_at_which_the_game_itself_fails_loses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a model could choose by it not to be scored."""
    environment = make("TicTacToe-v0")
    game = type(ta.make("TicTacToe-v0").env.env)
    step = game.step

    def fragile(self: Any, action: str) -> Any:
        if FAILS in action:
            int(FAILS.strip("[]"))
        return step(self, action)

    monkeypatch.setattr(game, "step", fragile)
    trace = play(environment, ["[0]", FAILS])
    assert trace.error is None
    assert [role.reward for role in trace.roles.values()] == [1.0, 0.0]
    assert "failed at the move: ValueError" in trace.info["textarena"]["reason"]


def test_a_game_that_the_turn_limit_ends_earns_nobody_anything() -> None:
    trace = play(make("TicTacToe-v0", max_turns=3), ["[0]", "[3]", "[1]", "[4]", "[2]"])
    assert [role.reward for role in trace.roles.values()] == [0.0, 0.0]
    assert trace.truncated


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"seat": 1}, "the model has every seat; leave out seat = 1"),
        ({"max_turns": 0}, "max_turns must be at least 1"),
        ({"players": 9}, "does not begin with players = 9"),
        ({"returns": [1, 0]}, "returns must be"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(vf.ConfigError, match=words):
        make("TicTacToe-v0", **settings)
