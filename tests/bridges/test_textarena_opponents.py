"""Who plays against the model: random opponents, and games that end before its turn."""

from __future__ import annotations

import re

import pytest

from tests.bridges.test_textarena import WIN, first, run
from vf.bridges.textarena.environment import TextArena
from vf.runtime.errors import ConfigError


@pytest.mark.parametrize(
    ("game", "mine"),
    [("ConnectFour-v0", ["[col 0]", "[col 1]"]), ("Battleship-v0", ["[A0]", "[B1]", "[C2]"])],
)
def test_a_random_opponent_plays_by_the_rules_and_does_not_copy_the_model(
    game: str, mine: list[str]
) -> None:
    environment = TextArena(game, seat=0, num_train=3)
    for task in environment.tasks("train"):
        trace = run(environment, task, mine)  # until the script ends
        heard = "\n".join(message.content for message in trace.messages if message.role == "user")
        theirs = re.findall(r"^\[Player 1\] (\[.*\])$", heard, re.MULTILINE)
        assert len(theirs) == len(mine)
        assert theirs != mine
        assert "invalid" not in heard


def test_a_game_whose_moves_have_no_form_refuses_a_random_opponent() -> None:
    with pytest.raises(ConfigError, match="Breakthrough-v0: opponent = 'random' finds no move"):
        TextArena("Breakthrough-v0")
    assert TextArena("Breakthrough-v0", opponent=["[a7a6]"]).players == 2


def test_a_game_that_is_over_before_the_models_turn_is_replaced() -> None:
    moves = iter(["nonsense", "nonsense", "[3]", "[4]", "[6]"])
    environment = TextArena("TicTacToe-v0", opponent=lambda messages: next(moves), seat=1)
    task = first(environment)
    trace = run(environment, task, WIN)
    assert trace.reward == 1.0, trace.error
    assert trace.info["textarena"]["seed"] != task.info["seed"]
