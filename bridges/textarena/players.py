"""The players of the other seats of a TextArena game."""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from vf.bridges.textarena.match import Match
from vf.environments.players import Player as Playing
from vf.inference.model import Conversation, Model, Reply, Sampling
from vf.runtime.calling import call
from vf.runtime.errors import ConfigError
from vf.traces.messages import Message

# A function of the messages that a player has received and sent so far, which returns a move.
Policy: TypeAlias = Callable[[list[Message]], Any]
# "random", moves in order, a policy, a model, or a table of one at an OpenAI-compatible API.
Opponent: TypeAlias = str | Sequence[str] | Policy | Model | Mapping[str, Any]

RANDOM = "random"
_WHERE = "textarena.opponent"  # the setting, for the errors
_TRIES = 1000  # moves that are tried on a copy of the game before it is given up
_TRIAL_ROUNDS = 4
_OTHERS = 9  # a single shown move is drawn as shown once in ten times
_MOVE = re.compile(r"\[[^\[\]\n]+\]")
_NUMBER = re.compile(r"\d+")
_LETTER = re.compile(r"(?<![A-Za-z])[A-Za-z](?![A-Za-z])")
_NO_MOVE = "[]"  # an invalid move in every game


@dataclass(eq=False)
class Player:
    """One opponent in one episode: it receives observations, and moves.

    Args:
        model: The model that answers.
        sampling: The sampling parameters.
    """

    model: Model
    sampling: Sampling
    conversation: Conversation = field(default_factory=Conversation, init=False)

    async def move(self, observation: str) -> str:
        """Return a move.

        Args:
            observation: The observation since its last move.

        Raises:
            ModelError: If the model did not answer.
        """
        conversation = self.conversation
        conversation.messages.append(Message("user", observation))
        reply = await self.model.respond(conversation, self.sampling)
        conversation.messages.append(reply.message)
        conversation.turn += 1
        return reply.message.content


@dataclass(frozen=True)
class PolicyModel:
    """A function of the messages as a model; it may be a coroutine function.

    Args:
        policy: Returns the next move, as text.
    """

    policy: Policy

    async def respond(self, conversation: Conversation, sampling: Sampling) -> Reply:
        """Return the policy's move."""
        return Reply(Message("assistant", str(await call(self.policy, conversation.messages))))


def check_opponent(opponent: Opponent) -> None:
    """Check that an opponent is valid.

    Raises:
        ConfigError: If it is not a valid opponent; says what is.
    """
    if isinstance(opponent, Mapping):
        Playing.of(opponent, _WHERE, Sampling())
    elif isinstance(opponent, str):
        if opponent != RANDOM:
            raise ConfigError(
                f"textarena: there is no opponent {opponent!r}. It is 'policy', 'random', a list "
                "of moves, a function of the messages, a model, or a table with 'checkpoint', or "
                "with 'model' and 'base_url'"
            )
    elif isinstance(opponent, Sequence):
        if not opponent or not all(isinstance(move, str) for move in opponent):
            raise ConfigError("textarena: opponent: a list of moves holds texts, at least one")
    elif not callable(opponent) and not hasattr(opponent, "respond"):
        raise ConfigError(
            f"textarena: opponent cannot be {type(opponent).__name__}: pass 'policy', 'random', "
            "moves, a function of the messages, a model, or a table with 'checkpoint', or with "
            "'model' and 'base_url'"
        )


def opened(opponent: Opponent) -> tuple[Any, Sampling]:
    """Return an opponent's model and its sampling parameters.

    Args:
        opponent: An opponent that :func:`check_opponent` accepts, but not "random".
    """
    if isinstance(opponent, Mapping):
        player = Playing.of(opponent, _WHERE, Sampling())
        return player.model, player.sampling
    if isinstance(opponent, Sequence):
        moves = list(opponent)
        return PolicyModel(lambda messages: moves[len(messages) // 2 % len(moves)]), Sampling()
    return opponent if hasattr(opponent, "respond") else PolicyModel(opponent), Sampling()


class RandomPlayer:
    """Draws among moves that the game accepts.

    A move has one of the forms that the game itself has shown this seat in square brackets, such as
    ``[col 4]`` or ``[e2e4]``; never one that another player wrote. It is one of the latest that the
    game showed, which are often the legal ones, or another with other numbers, and with another
    letter or digit for each letter that stands alone: the more are shown, the more likely is one of
    them. The first that a copy of the game accepts is played.

    Args:
        match: The game.
        seat: The player's seat.
        rng: The source of random numbers.
    """

    def __init__(self, match: Match, seat: int, rng: random.Random) -> None:
        self._match, self._seat, self._rng = match, seat, rng

    async def move(self, observation: str) -> str:
        """Return a move; an invalid one if there is no other."""
        return await call(self.draw) or _NO_MOVE

    def draw(self) -> str | None:
        """Return a move that the game accepts, or None if none was found."""
        shown: list[list[str]] = [_MOVE.findall(text) for text in self._match.shown[self._seat]]
        latest = next(filter(None, reversed(shown)), None)
        if latest is None:
            return None
        latest = list(dict.fromkeys(latest))
        forms = list(dict.fromkeys(form for moves in shown for form in moves))
        tried: set[str] = set()
        for _ in range(_TRIES):
            as_shown = self._rng.random() < len(latest) / (len(latest) + _OTHERS)
            move = self._rng.choice(latest if as_shown else forms)
            if not as_shown:
                move = _LETTER.sub(self._letter, _NUMBER.sub(self._number, move))
            if move not in tried and self._match.accepts(move):
                return move
            tried.add(move)
        return None

    def _number(self, shown: re.Match[str]) -> str:
        return str(self._rng.randint(0, max(9, int(shown[0]))))

    def _letter(self, shown: re.Match[str]) -> str:
        letters = string.ascii_lowercase if shown[0].islower() else string.ascii_uppercase
        return self._rng.choice(letters[:10] + string.digits)


def check_random(match: Match) -> None:
    """Check, in a separate game, that random players find moves.

    Raises:
        ConfigError: If they find none.
    """
    rng = random.Random(0)
    players = [RandomPlayer(match, seat, rng) for seat in range(match.players)]
    move: str | None = None
    for _ in range(_TRIAL_ROUNDS * match.players):
        seat, _ = match.advance(move)
        if seat is None:
            return
        move = players[seat].draw()
        if move is None:
            raise ConfigError(
                f"textarena: {match.game}: opponent = 'random' finds no move that the game takes, "
                "because the game shows none in square brackets whose form can be followed. Name "
                "another opponent: moves, a function of the messages, a model, 'policy', or a "
                "table with 'checkpoint', or with 'model' and 'base_url'"
            )
