"""`textarena:<game>`: with one seat for the model, or with all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vf.bridges.textarena.environment import TextArena
from vf.bridges.textarena.players import Opponent
from vf.bridges.textarena.seats import TextArenaSeats
from vf.environments.environment import Environment
from vf.environments.roles import POLICY
from vf.runtime.errors import ConfigError


def textarena(
    game: str,
    args: Mapping[str, Any] | None = None,
    opponent: Opponent = "random",
    seat: int | None = None,
    players: int | None = None,
    returns: Sequence[float] | None = None,
    max_turns: int = 100,
    num_train: int = 2000,
    num_eval: int = 200,
    seed: int = 0,
) -> Environment:
    """Play a game of TextArena: one seat of it, or with ``opponent = "policy"`` all of them.

    With ``"policy"`` each seat is a role, ``player_0`` and so on, that the policy plays, and all
    are trained (:class:`~vf.bridges.textarena.seats.TextArenaSeats`). Otherwise the model has one
    seat (:class:`~vf.bridges.textarena.environment.TextArena`).

    Args:
        game: Its id, such as ``"TicTacToe-v0"``.
        args: Arguments of its class, such as ``{"max_number": 50}``.
        opponent: The player of the other seats, each on its own: ``"policy"`` (the model that is
            trained; see above), ``"random"`` (moves that the game shows the form of, and accepts),
            a list of moves (which begins again at its end), a function of the messages so far that
            returns a move, a model, or a table with ``checkpoint``, or with ``model`` and
            ``base_url`` of an OpenAI-compatible API.
        seat: The model's player, from 0; None draws it at random for each task. With ``"policy"``
            it is all of them.
        players: Number of players; by default the game's minimum.
        returns: The rewards worth 0 and 1: ``(worst, best)``.
        max_turns: Maximum replies in one episode, of all roles together. An episode that it ends
            is truncated.
        num_train: Tasks in the train split.
        num_eval: Tasks in the eval split.
        seed: The seed of the tasks' seeds and seats.

    Raises:
        ConfigError: If there is no such game, it cannot be made here (word lists of NLTK or an API
            key are missing, for instance), a random opponent finds no moves in it, an argument is
            out of range, or TextArena is missing or of a version that is not supported.
    """
    settings: dict[str, Any] = {
        "args": args,
        "players": players,
        "returns": returns,
        "max_turns": max_turns,
        "num_train": num_train,
        "num_eval": num_eval,
        "seed": seed,
    }
    if opponent != POLICY:
        return TextArena(game, opponent=opponent, seat=seat, **settings)
    if seat is not None:
        raise ConfigError(
            f"textarena: with opponent = 'policy' the model has every seat; leave out seat = {seat}"
        )
    return TextArenaSeats(game, **settings)
