"""Whom a policy meets in a game for two: itself, a script, a frozen checkpoint or another model."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from vf.environments.environment import Split
from vf.environments.players import ANSWER, PlayedBy, Player
from vf.environments.roles import POLICY
from vf.runtime.errors import ConfigError
from vf.traces.messages import Message
from vf.traces.task import Task
from vf.traces.trace import Trace

# "policy", the name of one of the game's scripts, or whatever else can play a role.
Opponent: TypeAlias = str | PlayedBy

# Chooses a reply to the messages of a role, with the episode's random numbers.
Script: TypeAlias = Callable[[list[Message], random.Random], str]


@dataclass(frozen=True, slots=True)
class Opponents:
    """Whom the policy meets in the games of each split.

    Attributes:
        game: The environment's name, for errors.
        train: Opponents of training games, by names of the user's own. None: the policy itself.
        held_out: The opponent of held-out games.
        scripts: What the game brings along.

    Raises:
        ConfigError: If there are no opponents, or one is unknown.
    """

    game: str
    train: Mapping[str, Opponent] | None
    held_out: Opponent
    scripts: Mapping[str, Script]

    def __post_init__(self) -> None:
        """Refuse what cannot be an opponent."""
        if self.train is not None and not (isinstance(self.train, Mapping) and self.train):
            raise ConfigError(
                f"{self.game}: opponents = {self.train!r}: write a table of opponents by name, "
                "such as {random = 'random', itself = 'policy'}"
            )
        choices = (POLICY, *self.scripts)
        for where, opponent in self._named():
            if isinstance(opponent, str) and opponent not in choices:
                *first, last = map(repr, choices)
                raise ConfigError(
                    f"{self.game}: {where} = {opponent!r}: write {', '.join(first)} or {last}, a "
                    "table with 'checkpoint' or 'model', a model, or a function of the messages"
                )

    def of(self, split: Split) -> dict[str, Opponent]:
        """Return a split's opponents by name."""
        return (
            {**(self.train or {"itself": POLICY})} if split == "train" else {"eval": self.held_out}
        )

    def players(
        self, task: Task, role: str, rng: Callable[[], random.Random]
    ) -> dict[str, PlayedBy | str]:
        """Return who plays in a task what the policy does not play.

        Args:
            task: Its ``info`` has ``split`` and ``opponent``, a name.
            role: The opponent's.
            rng: Returns the random numbers of a script, when it moves.
        """
        opponent = self.of(task.info["split"])[task.info["opponent"]]
        if opponent == POLICY:
            return {}
        if isinstance(opponent, str):
            return {role: partial(_play, self.scripts[opponent], rng)}
        return {role: opponent}

    def check(self) -> None:
        """Check that all of them can play.

        Raises:
            ConfigError: If an opponent cannot; the message names the setting.
        """
        for where, opponent in self._named():
            if not isinstance(opponent, str):
                Player.of(opponent, where, ANSWER)

    def _named(self) -> Iterator[tuple[str, Opponent]]:
        """Yield all opponents, each with the setting that names it."""
        for name, opponent in (self.train or {}).items():
            yield f"opponents.{name}", opponent
        yield "eval_opponent", self.held_out


def _play(script: Script, rng: Callable[[], random.Random], messages: list[Message]) -> str:
    return script(messages, rng())


def forfeited(trace: Trace) -> float:
    """1 if the game ended with a reply that was no legal move, 0 otherwise."""
    return float("forfeited_by" in trace.info)
