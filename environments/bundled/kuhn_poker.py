"""Kuhn poker with two roles: self-play in training, a fixed opponent in held-out games."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from itertools import permutations

from vf.environments.bundled.opponents import Opponent, Opponents, forfeited
from vf.environments.environment import Split
from vf.environments.generated import split_sizes
from vf.environments.multi_agent import MultiAgentEnvironment
from vf.environments.players import PlayedBy
from vf.environments.roles import POLICY, Role, RoleStep, mean_role_reward
from vf.rubrics.rubric import Rubric
from vf.runtime.seeding import derive_seed
from vf.traces.messages import Message
from vf.traces.task import Task
from vf.traces.trace import Trace

_CARDS = "JQK"
_ROLES = ("first", "second")
_MOST = 2  # chips that a game can cost

# The probability of a bet in an equilibrium (Kuhn 1950; alpha = 1/6), by card, after these moves:
# none or a pass, and a bet that can be called.
EQUILIBRIUM = {
    "first": {"J": (1 / 6, 0.0), "Q": (0.0, 1 / 2), "K": (1 / 2, 1.0)},
    "second": {"J": (1 / 3, 0.0), "Q": (0.0, 1 / 3), "K": (1.0, 1.0)},
}


def chips(trace: Trace) -> float:
    """Return the chips that the policy won, from -2 to 2; 0 where it played both roles."""
    won = [
        2 * _MOST * role.reward - _MOST for role in trace.roles.values() if role.player == POLICY
    ]
    return sum(won) / len(won)


class KuhnPoker(MultiAgentEnvironment):
    """Play Kuhn poker: a reply is `bet` or `pass`. Anything else loses two chips.

    Each player puts in a chip and gets one of the cards J, Q and K. If both pass, or a bet of one
    more chip is called (`bet`), the higher card wins what was put in; who passes after a bet loses
    a chip. A role earns (2 + chips) / 4. In training the policy plays ``first`` and ``second`` by
    default; in held-out games it plays them in turn against ``eval_opponent``. On average over both
    roles the game is worth 0 chips, a reward of 0.5, and no strategy wins more against
    ``"equilibrium"``. The deals are the six possible ones, equally often.

    Args:
        opponents: The other role's players in training, by names of one's own: ``"policy"``,
            ``"random"``, ``"equilibrium"``, or what ``players`` of any
            :class:`vf.MultiAgentEnvironment` takes, such as ``{"checkpoint": FOLDER}``. Each has an
            equal share of the tasks, whose info names it as ``opponent``: the curriculum ``league``
            draws by that. By default it is the policy.
        eval_opponent: The same for held-out games.
        num_train: Games in the train split.
        num_eval: Games in the eval split.
        seed: Seed of the order of the games.

    Raises:
        ConfigError: If an argument is out of range, or no opponent.
    """

    roles = {
        name: Role(
            f"Kuhn poker. You act {name}. Reply with bet or pass.", optional=name == "second"
        )
        for name in _ROLES
    }
    max_turns = 3

    def __init__(
        self,
        opponents: Mapping[str, Opponent] | None = None,
        eval_opponent: Opponent = "equilibrium",
        num_train: int = 2400,
        num_eval: int = 240,
        seed: int = 0,
    ) -> None:
        scripts = {"random": _random_move, "equilibrium": _equilibrium_move}
        self.opponents = Opponents("kuhn-poker", opponents, eval_opponent, scripts)
        self.seed = seed
        self.sizes = split_sizes("kuhn-poker", num_train, num_eval)
        self.rubric = Rubric(outcome=mean_role_reward, metrics=[chips, forfeited])

    def tasks(self, split: Split) -> Iterator[Task]:
        """Yield games: the cards, and which role the policy plays against another."""
        rng = random.Random(derive_seed(self.seed, "kuhn-poker", split))
        kinds = [
            {"opponent": opponent, "role": role, "cards": [*cards], "split": split}
            for opponent in self.opponents.of(split)
            for role in _ROLES
            for cards in permutations(_CARDS, 2)
        ]
        for index in range(self.sizes[split]):
            if index % len(kinds) == 0:
                rng.shuffle(kinds)
            info = kinds[index % len(kinds)]
            prompt = _card(info["cards"][0])
            yield Task(id=f"{split}-{index}", prompt=prompt, answer="", info={**info})

    def players_of(self, task: Task) -> Mapping[str, PlayedBy | str]:
        """Let the task's opponent play the other role, unless the policy plays both."""
        return self.opponents.players(task, _other(task.info["role"]), lambda: self.rng)

    def reset(self, task: Task) -> RoleStep:  # type: ignore[override]
        """Deal the cards."""
        self.cards = dict(zip(_ROLES, task.info["cards"], strict=True))
        self.moves: list[str] = []
        return self._ask("first")

    def step(self, replies: dict[str, Message]) -> RoleStep:  # type: ignore[override]
        """Take a move of the role whose turn it is."""
        [(role, reply)] = replies.items()
        move = reply.content.strip().lower()
        if move not in ("bet", "pass"):
            return self._end(_other(role), _MOST, {"forfeited_by": role})
        self.moves.append(move)
        match self.moves:
            case [only]:
                return self._ask("second", only)
            case ["pass", "bet"]:
                return self._ask("first", "bet")
            case [*_, "bet", "pass"]:
                return self._end(_other(role), 1)
            case _:
                higher = max(_ROLES, key=lambda name: _CARDS.index(self.cards[name]))
                return self._end(higher, 2 if move == "bet" else 1)

    async def check(self) -> None:
        """Check that every opponent can play; see :meth:`vf.MultiAgentEnvironment.check`."""
        await super().check()
        self.opponents.check()

    def _ask(self, role: str, heard: str = "") -> RoleStep:
        sentences = [_heard(heard)] if heard else []
        return RoleStep({role: " ".join([*sentences, _card(self.cards[role])])})

    def _end(self, winner: str, won: int, info: Mapping[str, str] | None = None) -> RoleStep:
        rewards = {
            name: (_MOST + (won if name == winner else -won)) / (2 * _MOST) for name in _ROLES
        }
        cards = " ".join(self.cards.values())
        end = {"cards": cards, "moves": " ".join(self.moves), **(info or {})}
        return RoleStep(rewards=rewards, terminated=True, info=end)


def _other(role: str) -> str:
    return _ROLES[1 - _ROLES.index(role)]


def _card(card: str) -> str:
    return f"You hold {card}."


def _heard(move: str) -> str:
    return "The other player bets." if move == "bet" else "The other player passes."


def _random_move(messages: list[Message], rng: random.Random) -> str:
    return rng.choice(["bet", "pass"])


def _equilibrium_move(messages: list[Message], rng: random.Random) -> str:
    text = " ".join(message.content for message in messages)
    role = next(name for name in _ROLES if f"You act {name}." in text)
    card = next(card for card in _CARDS if _card(card) in text)
    after = EQUILIBRIUM[role][card]
    return "bet" if rng.random() < after[_heard("bet") in text] else "pass"
