"""One game of TextArena in progress: whose turn it is, their observation, and the results."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import Any, TypeAlias

from vf.bridges.seeded_games import GlobalRandom, check_returns, share_of
from vf.bridges.textarena.games import innermost, make_game
from vf.runtime.errors import EnvironmentFailure, RubricError
from vf.runtime.extras import load

_NOTHING_NEW = "It is your turn again."
_GAME = -1  # the sender of the game's own messages
# All players' rewards, and TextArena's further information on each.
Results: TypeAlias = tuple[dict[int, float], Mapping[int, Mapping[str, Any]]]
# Errors of a game's own code at a move that its author did not foresee. Other errors come from
# elsewhere, such as an API that it calls.
BUGS = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, NameError),
    *(RecursionError, TypeError, ValueError, re.error),
)


def failed_at(error: Exception) -> str:
    """Return a message: the game's code failed at a move, and how."""
    description = shorten(f"{type(error).__name__}: {error}", 300)
    return f"the game's code failed at the move: {description}"


class Match:
    """A game that was begun. Its methods block, so call them in a thread.

    Args:
        game: Its id.
        args: Arguments of its class.
        players: The number of players.
        seed: The seed of everything that it draws.

    Attributes:
        shown: The game's own messages to each seat, without other players'.

    Raises:
        ConfigError: If it cannot be made.
    """

    def __init__(self, game: str, args: Mapping[str, Any], players: int, seed: int) -> None:
        self.game, self.players = game, players
        self.shown: dict[int, list[str]] = {seat: [] for seat in range(players)}
        self._dice = GlobalRandom(seed)
        self._env = make_game(game, args, self._dice)
        with self._dice.in_place():
            self._env.reset(num_players=players, seed=seed)

    def advance(self, move: str | None) -> tuple[int | None, str]:
        """Make a move, or none at the beginning.

        Returns:
            The seat whose turn it is, and its observation; None if the game is over.

        Raises:
            Exception: If the game's code failed at the move: one of :data:`BUGS`.
        """
        with self._dice.in_place():
            if move is not None and self._env.step(action=move)[0]:
                return None, ""
            seat, observation = innermost(self._env).get_observation()
        self.shown[int(seat)] += [text for sender, text, _ in observation if sender == _GAME]
        return int(seat), self._render(int(seat), observation)

    def accepts(self, move: str) -> bool:
        """Return whether a copy of the game accepts a move of the player whose turn it is."""
        refused: list[Any] = []
        try:
            trial = copy.deepcopy(self._env)
            innermost(trial).state.set_invalid_move = lambda *why, **more: refused.append(why)
            with GlobalRandom(0).in_place():
                trial.step(action=move)
        except (*BUGS, NotImplementedError):
            return False
        return not refused

    def last_words(self, seat: int) -> str:
        """Return a player's observation after the last move."""
        return self._render(seat, innermost(self._env).state.observations[seat])

    def results(self) -> Results:
        """Return the results of the game, after the last move.

        Raises:
            EnvironmentFailure: If one of the players has no reward.
            Exception: If the game gave a reward that is not a number: one of :data:`BUGS`.
        """
        rewards, info = self._env.close()
        for seat in range(self.players):
            if (rewards or {}).get(seat) is None:
                raise EnvironmentFailure(
                    f"textarena: {self.game} ended without a reward for player {seat}"
                )
        return {seat: float(value) for seat, value in rewards.items()}, info

    def _render(self, seat: int, observation: Sequence[tuple[int, str, Any]]) -> str:
        """Return a seat's observation as text, without its own moves, as TextArena does."""
        own = load("textarena", "textarena").ObservationType.PLAYER_ACTION
        # A few games report a lone player's moves as game messages.
        own_names = {seat, _GAME} if self.players == 1 else {seat}
        names = innermost(self._env).state.role_mapping
        lines = [
            f"[{'GAME' if sender == _GAME else names.get(sender, f'Player {sender}')}] {text}"
            for sender, text, kind in observation
            if not (kind == own and sender in own_names)
        ]
        return "\n".join(lines) or _NOTHING_NEW


@dataclass(frozen=True, slots=True)
class Worth:
    """The value of TextArena's rewards.

    Attributes:
        game: The game's id, for the error.
        returns: The rewards worth 0 and 1.
        given: Whether they were set; otherwise rewards beyond the usual ones are an error.
    """

    game: str
    returns: tuple[float, float]
    given: bool

    @classmethod
    def of(cls, game: str, returns: Sequence[float] | None, players: int) -> Worth:
        """Return it for a setting.

        Raises:
            ConfigError: If the setting is not two numbers in ascending order.
        """
        if returns is not None:
            return cls(game, check_returns("textarena", returns), given=True)
        return cls(game, (0.0, 1.0) if players == 1 else (-1.0, 1.0), given=False)

    def __call__(self, reward: float) -> float:
        """Return a reward as a share of the way from the worst to the best, in [0, 1].

        Raises:
            RubricError: If TextArena gave a reward outside of [-1, 1], and ``returns`` is not set.
        """
        if not self.given and not -1.0 <= reward <= 1.0:
            raise RubricError(
                f"textarena: {self.game} gave a reward of {reward:g}, outside of -1 to 1: say "
                "which rewards are worth 0 and 1 with returns = [worst, best]"
            )
        return share_of(reward, self.returns)
