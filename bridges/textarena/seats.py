"""TextArena's games with every seat played by the policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vf.bridges.seeded_games import game_seeds
from vf.bridges.textarena.games import check_game
from vf.bridges.textarena.match import BUGS, Match, Worth, failed_at
from vf.environments.environment import Split
from vf.environments.generated import split_sizes
from vf.environments.multi_agent import MultiAgentEnvironment
from vf.environments.roles import Role, RoleStep, mean_role_reward
from vf.rubrics.rubric import Rubric
from vf.runtime.calling import call
from vf.traces.messages import Message
from vf.traces.task import Task
from vf.traces.trace import Trace


class TextArenaSeats(MultiAgentEnvironment):
    """Play all seats of a game of TextArena; each is a role: ``player_0``, ``player_1`` and so on.

    What a role sees, and what its moves do, is as in
    :class:`~vf.bridges.textarena.environment.TextArena`. Its reward is TextArena's at the end of
    the game, as a share of the way from the one worth 0 to the one worth 1. A game that
    ``max_turns`` ended earns no reward. A move at which the game's own code raises an error ends
    it: its player gets the worst reward, and the others the best.

    ``Trace.info["textarena"]`` holds, at the end, all ``rewards`` by role, the ``reason``, and
    ``invalid_moves``, the roles whose last move was invalid.

    Args and errors are those of :func:`~vf.bridges.textarena.make.textarena`.
    """

    def __init__(
        self,
        game: str,
        args: Mapping[str, Any] | None = None,
        players: int | None = None,
        returns: Sequence[float] | None = None,
        max_turns: int = 100,
        num_train: int = 2000,
        num_eval: int = 200,
        seed: int = 0,
    ) -> None:
        self.game, self.args = game, dict(args or {})
        self.count = check_game(game, self.args, players, max_turns)
        self.sizes = split_sizes("textarena", num_train, num_eval)
        self.max_turns, self.seed = max_turns, seed
        self.roles = {_role(seat): Role(optional=True) for seat in range(self.count)}
        self.worth = Worth.of(game, returns, self.count)
        self.rubric = Rubric(outcome=mean_role_reward, metrics={"invalid_moves": _invalid_moves})

    def tasks(self, split: Split) -> Iterator[Task]:
        """Yield seeds; those of the train split are even, the others odd."""
        seeds = game_seeds("textarena", self.seed, split, self.sizes[split])
        for index, number in enumerate(seeds):
            info = {"seed": number, "players": self.count}
            yield Task(f"{split}-{index}", f"A game of {self.game}.", info=info)

    async def reset(self, task: Task) -> RoleStep:  # type: ignore[override]
        """Begin the game."""
        self._match = await call(Match, self.game, self.args, self.count, int(task.info["seed"]))
        seat, observation = await call(self._match.advance, None)
        return RoleStep({_role(seat or 0): observation})

    async def step(self, replies: dict[str, Message]) -> RoleStep:  # type: ignore[override]
        """Make the move of the role whose turn it is."""
        [(role, reply)] = replies.items()
        try:
            seat, observation = await call(self._match.advance, reply.content)
            results = await call(self._match.results) if seat is None else None
        except BUGS as error:
            earned = {other: float(other != role) for other in self.roles}
            info: dict[str, Any] = {"reason": failed_at(error), "invalid_moves": [role]}
            return RoleStep(rewards=earned, terminated=True, info={"textarena": info})
        if results is None:
            return RoleStep({_role(int(seat or 0)): observation})
        rewards, info_by_seat = results
        reasons = [str(entry["reason"]) for entry in info_by_seat.values() if entry.get("reason")]
        info = {
            "rewards": {_role(seat): reward for seat, reward in rewards.items()},
            "reason": reasons[0] if reasons else "",
            "invalid_moves": [
                _role(s) for s, entry in info_by_seat.items() if entry.get("invalid_move")
            ],
        }
        return RoleStep(
            {_role(seat): self._match.last_words(seat) for seat in rewards},
            rewards={_role(seat): self.worth(reward) for seat, reward in rewards.items()},
            terminated=True,
            info={"textarena": info},
        )


def _role(seat: int) -> str:
    return f"player_{seat}"


def _invalid_moves(trace: Trace) -> float:
    return float(len(trace.info.get("textarena", {}).get("invalid_moves", ())))
