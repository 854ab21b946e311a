"""The players of the other seats of a TextArena game."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

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
