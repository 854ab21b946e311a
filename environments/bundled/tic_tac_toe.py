"""Tic-tac-toe with two roles: self-play in training, a fixed opponent in held-out games."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import TypeAlias

from vf.environments.bundled.opponents import Opponent, Opponents, Script, forfeited
from vf.environments.environment import Split
from vf.environments.generated import split_sizes
from vf.environments.multi_agent import MultiAgentEnvironment
from vf.environments.players import PlayedBy
from vf.environments.roles import POLICY, Role, RoleStep, mean_role_reward
from vf.rubrics.rubric import Rubric
from vf.runtime.errors import ConfigError
from vf.runtime.seeding import derive_seed
from vf.traces.messages import Message
from vf.traces.task import Task
from vf.traces.trace import Trace

# Chooses a move for the side whose turn it is on a board of nine cells.
Choose: TypeAlias = Callable[[str, random.Random], str]

_LINES = ("012", "345", "678", "036", "147", "258", "048", "246")
_SIDES = "XO"
_EMPTY = "123456789"  # an empty cell shows its number


def lost(trace: Trace) -> float:
    """1 if the policy lost a game against somebody else, 0 otherwise."""
    if all(role.player == POLICY for role in trace.roles.values()):
        return 0.0
    return float(any(e.reward == 0 for e in trace.roles.values() if e.player == POLICY))


class TicTacToe(MultiAgentEnvironment):
    """Play tic-tac-toe: a reply is the number of an empty cell. Anything else loses the game.

    Each side is a role, ``X`` and ``O``, and earns 1 for a win and 0.5 for a draw. In training the
    policy plays both by default; in held-out games it plays X and O in turn against
    ``eval_opponent``. Self-play from the empty board alone soon sees few different games, so
    training games can begin with some random moves.

    Args:
        opponents: The other side's players in training, by names of one's own: ``"policy"``,
            ``"random"``, ``"perfect"`` (minimax, at random among the best moves), or what
            ``players`` of any :class:`vf.MultiAgentEnvironment` takes, such as
            ``{"checkpoint": FOLDER}``. Each has an equal share of the tasks, whose info names it as
            ``opponent``: the curriculum ``league`` draws by that. By default it is the policy.
        eval_opponent: The same for held-out games, which begin with an empty board.
        openings: Most random moves, 0 to 6, that a training game begins with; each number is as
            likely as any other. Nobody has won after them.
        num_train: Games in the train split.
        num_eval: Games in the eval split.
        seed: Seed of the openings.

    Raises:
        ConfigError: If an argument is out of range, or no opponent.
    """

    roles = {side: Role(f"You play {side}. Reply with a cell.", optional=True) for side in _SIDES}

    def __init__(
        self,
        opponents: Mapping[str, Opponent] | None = None,
        eval_opponent: Opponent = "random",
        openings: int = 0,
        num_train: int = 2000,
        num_eval: int = 200,
        seed: int = 0,
    ) -> None:
        if not 0 <= openings <= 6:
            raise ConfigError(f"tic-tac-toe: openings must be from 0 to 6, got {openings}")
        self.opponents = Opponents("tic-tac-toe", opponents, eval_opponent, _SCRIPTS)
        self.openings, self.seed = openings, seed
        self.max_turns = 9
        self.sizes = split_sizes("tic-tac-toe", num_train, num_eval)
        self.rubric = Rubric(outcome=mean_role_reward, metrics=[lost, forfeited])

    def tasks(self, split: Split) -> Iterator[Task]:
        """Yield games: which side the policy plays against another, and the first moves."""
        rng = random.Random(derive_seed(self.seed, "tic-tac-toe", split))
        names = [*self.opponents.of(split)]
        for index in range(self.sizes[split]):
            board = _opening(rng.randint(0, self.openings), rng) if split == "train" else _EMPTY
            opponent = names[index // 2 % len(names)]
            info = {"opponent": opponent, "side": _SIDES[index % 2], "board": board, "split": split}
            yield Task(id=f"{split}-{index}", prompt=_shown(board), answer="", info=info)

    def players_of(self, task: Task) -> Mapping[str, PlayedBy | str]:
        """Let the task's opponent play the other side, unless the policy plays both."""
        return self.opponents.players(task, _other(task.info["side"]), lambda: self.rng)

    def reset(self, task: Task) -> RoleStep:  # type: ignore[override]
        """Put the first moves on the board."""
        self.board = str(task.info["board"])
        return self._ask()

    def step(self, replies: dict[str, Message]) -> RoleStep:  # type: ignore[override]
        """Make the move of the side whose turn it is."""
        [(side, reply)] = replies.items()
        cell = reply.content.strip()
        if len(cell) != 1 or cell not in _EMPTY or cell not in self.board:
            return self._end(_other(side), {"forfeited_by": side})
        self.board = self.board.replace(cell, side)
        if _won(self.board):
            return self._end(side)
        return self._ask() if _free(self.board) else self._end(None)

    async def check(self) -> None:
        """Check that every opponent can play; see :meth:`vf.MultiAgentEnvironment.check`."""
        await super().check()
        self.opponents.check()

    def _ask(self) -> RoleStep:
        return RoleStep({_turn(self.board): _shown(self.board)})

    def _end(self, winner: str | None, info: Mapping[str, str] | None = None) -> RoleStep:
        rewards = {side: 0.5 if winner is None else float(side == winner) for side in _SIDES}
        end = {"board": _shown(self.board), **(info or {})}
        return RoleStep(rewards=rewards, terminated=True, info=end)


def _other(side: str) -> str:
    return "O" if side == "X" else "X"


def _turn(board: str) -> str:
    """Return whose turn it is: X begins."""
    return _SIDES[(9 - len(_free(board))) % 2]


def _free(board: str) -> list[str]:
    return [cell for cell in board if cell not in _SIDES]


def _won(board: str) -> bool:
    """Return whether a side has three in a line; empty cells are all different."""
    return any(len({board[int(cell)] for cell in line}) == 1 for line in _LINES)


def _shown(board: str) -> str:
    return "\n".join(" ".join(board[row : row + 3]) for row in (0, 3, 6))


def _opening(moves: int, rng: random.Random) -> str:
    """Return a board after so many random moves, or fewer if the next would have won."""
    board = _EMPTY
    for _ in range(moves):
        after = board.replace(rng.choice(_free(board)), _turn(board))
        if _won(after):
            break
        board = after
    return board


def _random_move(board: str, rng: random.Random) -> str:
    return rng.choice(_free(board))


def _perfect_move(board: str, rng: random.Random) -> str:
    """Return one of the moves with the best value."""
    side = _turn(board)
    worth = {cell: -_value(board.replace(cell, side)) for cell in _free(board)}
    best = max(worth.values())
    return rng.choice([cell for cell, value in worth.items() if value == best])


@cache
def _value(board: str) -> int:
    """Return what a board is worth to the side whose turn it is, by minimax: -1, 0 or 1."""
    if _won(board):
        return -1  # the other has just won
    if not (free := _free(board)):
        return 0
    return max(-_value(board.replace(cell, _turn(board))) for cell in free)


def _script(choose: Choose) -> Script:
    """Return the player that reads the board and chooses so."""
    return lambda messages, rng: choose("".join(messages[-1].content.split()), rng)


_SCRIPTS = {"random": _script(_random_move), "perfect": _script(_perfect_move)}
