"""TextArena's games: single-player, or against opponents, with one seat for the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vf.bridges.seeded_games import game_seeds
from vf.bridges.textarena.games import check_game
from vf.bridges.textarena.match import BUGS, Match, Results, Worth, failed_at
from vf.bridges.textarena.players import (
    RANDOM,
    Opponent,
    Player,
    RandomPlayer,
    check_opponent,
    check_random,
    opened,
)
from vf.environments.environment import Environment, Split, Step
from vf.environments.generated import split_sizes
from vf.rubrics.rubric import Rubric
from vf.runtime.calling import call
from vf.runtime.errors import ConfigError, EnvironmentFailure
from vf.runtime.seeding import derive_seed
from vf.traces.messages import Message
from vf.traces.task import Task
from vf.traces.trace import Trace

_MOST_GAMES = 20  # of one task
_MOST_MOVES = 1000  # of opponents, until it is the model's turn again


class _MoveFailed(Exception):
    """The game's code raised an error at a move of the model."""


class TextArena(Environment):
    """Play a game of TextArena.

    Each turn the model sees what is new to its seat, in TextArena's words, and its reply is its
    move. The game decides what happens to an invalid one: usually one more try, then the game is
    lost. TextArena's wrappers of actions are in force (most put a bare move into square brackets);
    its observation wrappers are not, because they repeat everything said before.

    The outcome is the model's reward ``r`` at the end of the game, as a share of the way from the
    one worth 0 to the one worth 1::

        outcome = min(1, max(0, (r - worst) / (best - worst)))

    ``(worst, best)`` is ``(0, 1)`` for games of one player, where TextArena gives the share that
    was solved, and ``(-1, 1)`` for others, where it gives -1, 0 or 1 for a loss, a draw or a win
    (and ranks in between). A game that vf-rl's own limits ended has no reward, and is worth 0. A
    move of the model's at which the game's own code raises an error loses the game with the worst
    reward: else the model could choose, by such a move, not to be scored.

    A task is a seed and a seat: the game begins with ``task.info["seed"]``, whatever runs beside
    it. No seed is in both splits. A game that is over before the model's first turn is replaced by
    one from another seed. ``Trace.info["textarena"]`` holds the ``seat``, the ``seed`` that was
    played and, at the end, ``reward``, all ``rewards``, ``reason``, ``invalid_move`` and ``role``.

    Args and errors are those of :func:`~vf.bridges.textarena.make.textarena`.
    """

    def __init__(
        self,
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
    ) -> None:
        self.game = game
        self.args = dict(args or {})
        self.players = check_game(game, self.args, players, max_turns)
        self.sizes = split_sizes("textarena", num_train, num_eval)
        check_opponent(opponent)
        if opponent == RANDOM and self.players > 1:
            check_random(Match(game, self.args, self.players, 0))
        self.opponent = opponent
        self.max_turns = max_turns
        self.seed = seed
        if seat is not None and not 0 <= seat < self.players:
            raise ConfigError(
                f"textarena: {game}: seat must be 0 to {self.players - 1}, got {seat}"
            )
        self.seat = seat
        self.worth = Worth.of(game, returns, self.players)
        self.rubric = Rubric(
            outcome=self.outcome,
            metrics={"reward": _reward, "invalid_move": _invalid_move},
        )

    def outcome(self, trace: Trace) -> float:
        """The reward as a share of the way from the worst to the best, in [0, 1].

        Raises:
            RubricError: If the reward is outside of the expected range; see
                :class:`~vf.bridges.textarena.match.Worth`.
        """
        reward = _reward(trace)
        return 0.0 if reward is None else self.worth(reward)

    def tasks(self, split: Split) -> Iterator[Task]:
        """Yield seeds and seats; the seeds of the train split are even, the others odd."""
        seeds = game_seeds("textarena", self.seed, split, self.sizes[split])
        for index, number in enumerate(seeds):
            seat = derive_seed(number, "seat") % self.players if self.seat is None else self.seat
            info = {"seed": number, "seat": seat, "players": self.players}
            yield Task(f"{split}-{index}", f"A game of {self.game}.", info=info)

    async def reset(self, task: Task) -> list[Message]:
        """Begin the game, and let the others move until it is the model's turn."""
        self._seat = int(task.info["seat"])
        seed = int(task.info["seed"])
        for number in range(_MOST_GAMES):  # the others may end one before the model's first turn
            self._seed = derive_seed(seed, "again", number) if number else seed
            self._match = await call(Match, self.game, self.args, self.players, self._seed)
            others = (seat for seat in range(self.players) if seat != self._seat)
            self._others = {seat: self._opponent(seat) for seat in others}
            results, observation = await self._to_models_turn(None)
            if results is None:
                return self.first_messages(Task(task.id, observation))
        raise EnvironmentFailure(
            f"textarena: {self.game} was over before the model's first turn, as player "
            f"{self._seat}, in {_MOST_GAMES} games from seed {seed}"
        )

    async def step(self, reply: Message) -> Step:
        """Make the model's move, and those of the others until it is its turn again."""
        record: dict[str, Any] = {"seat": self._seat, "seed": self._seed}
        try:
            results, observation = await self._to_models_turn(reply.content)
        except _MoveFailed as error:
            worst, _ = self.worth.returns
            record |= {"reward": worst, "reason": str(error), "invalid_move": True}
            return Step(reward=worst, terminated=True, info={"textarena": record})
        if results is None:
            return Step(observation, info={"textarena": record})
        rewards, info = results
        reward = rewards[self._seat]
        mine = info.get(self._seat, {})
        record |= {
            "reward": reward,
            "rewards": {str(seat): value for seat, value in rewards.items()},
            "reason": str(mine.get("reason")),
            "invalid_move": bool(mine.get("invalid_move")),
            "role": str(mine.get("role")),
        }
        return Step(observation, reward=reward, terminated=True, info={"textarena": record})

    def _opponent(self, seat: int) -> Player | RandomPlayer:
        """Return the player of a seat; a model from a table is closed with the episode."""
        if self.opponent == RANDOM:
            return RandomPlayer(self._match, seat, self.rng)
        model, sampling = opened(self.opponent)
        if isinstance(self.opponent, Mapping):
            self.hold(("opponent", seat), lambda: model)
        return Player(model, sampling)

    async def _to_models_turn(self, move: str | None) -> tuple[Results | None, str]:
        """Make a move, or none at the beginning, and play on until it is the model's turn.

        Returns:
            The results of the game, if it is over, and the model's observation.

        Raises:
            _CannotTake: If the game's code raised an error at the model's move.
        """
        for number in range(_MOST_MOVES):
            try:
                seat, observation = await call(self._match.advance, move)
                results = await call(self._match.results) if seat is None else None
            except BUGS as error:
                if number or move is None:  # not at the model's move
                    raise
                raise _MoveFailed(failed_at(error)) from error
            if results is not None:
                return results, self._match.last_words(self._seat)
            if seat == self._seat:
                return None, observation
            move = await self._others[int(seat or 0)].move(observation)
        raise EnvironmentFailure(
            f"textarena: the others made {_MOST_MOVES} moves in {self.game}, and it is not yet "
            f"the turn of player {self._seat}"
        )


def _reward(trace: Trace) -> float | None:
    reward: float | None = trace.info.get("textarena", {}).get("reward")
    return reward


def _invalid_move(trace: Trace) -> float:
    return float(trace.info.get("textarena", {}).get("invalid_move", False))
