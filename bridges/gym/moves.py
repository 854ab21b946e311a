"""Reading a model's reply as an action of a Gymnasium environment."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from vf.runtime.errors import ConfigError

if TYPE_CHECKING:
    import gymnasium

# Returns the action in a reply. Raises ValueError or LookupError if there is none: the model sees
# the text of a ValueError.
Parse: TypeAlias = Callable[[str], Any]

_STATED = re.compile(r"\baction\s*[:=]", re.IGNORECASE)


class NamedMoves:
    """Finds the one action that a reply names.

    It is searched after the reply's last ``Action:``, or else in the whole reply, as a separate
    word in upper or lower case. If every action has a name, its number is understood too, if the
    reply holds nothing else.

    Args:
        names: The actions' names, in order.
        start: The first action's number.
    """

    def __init__(self, names: Sequence[str], start: int = 0) -> None:
        self._actions = {name.lower(): start + index for index, name in enumerate(names)}
        self._numbers = {str(number): number for number in self._actions.values()}
        longest_first = sorted(self._actions, key=len, reverse=True)
        joined = "|".join(re.escape(name) for name in longest_first)
        self._name = re.compile(rf"(?<![\w.+-])(?:{joined})(?![\w-]|\.\d)")
        self._instruction = f"Reply with one action: {', '.join(names)}."

    def __call__(self, reply: str) -> int:
        """Return the action's number.

        Raises:
            ValueError: If the reply names none, or several; says which there are.
        """
        statement = _STATED.split(reply.lower())[-1]
        if statement.strip() in self._numbers and statement.strip() not in self._actions:
            return self._numbers[statement.strip()]
        names = set(self._name.findall(statement))
        if len(names) != 1:
            raise ValueError(self._instruction)
        return self._actions[names.pop()]


class NumberMoves:
    """Reads several whole numbers at once, for spaces of more than one dimension.

    Args:
        lows: The smallest number of each dimension.
        highs: The largest.
    """

    def __init__(self, lows: Sequence[int], highs: Sequence[int]) -> None:
        self._ranges = list(zip(lows, highs, strict=True))
        self._instruction = f"Reply with {how_to_number(self._ranges)}."

    def __call__(self, reply: str) -> Any:
        """Return the action, an array of integers.

        Raises:
            ValueError: If the reply does not hold the required numbers; says which.
        """
        import numpy as np

        digits = re.findall(r"-?\d+", _STATED.split(reply)[-1])
        if len(digits) != len(self._ranges) or any(len(number) > 9 for number in digits):
            raise ValueError(self._instruction)
        numbers = [int(number) for number in digits]
        if any(not low <= n <= high for n, (low, high) in zip(numbers, self._ranges, strict=True)):
            raise ValueError(self._instruction)
        return np.array(numbers)


def how_to_number(ranges: Sequence[tuple[int, int]]) -> str:
    """Describe the numbers of an action of several dimensions."""
    listed = ", ".join(f"{low} to {high}" for low, high in ranges)
    return f"{len(ranges)} whole numbers, of {listed}"


def default_parse(
    name: str, space: gymnasium.Space[Any], actions: Sequence[str] | None
) -> tuple[Parse, str]:
    """Return a parser of this space's actions, and the instruction for the model to write them.

    Args:
        name: The environment's name, for the errors.
        space: A Discrete, MultiDiscrete or MultiBinary space, or one of texts.
        actions: The names of a Discrete space's actions; its numbers by default.

    Raises:
        ConfigError: If the names do not fit, or it is another space.
    """
    from gymnasium import spaces

    if not isinstance(space, spaces.Discrete) and actions is not None:
        raise ConfigError(f"{name}: actions can be named in a Discrete space only, not {space}")
    if isinstance(space, spaces.Discrete):
        start, count = int(space.start), int(space.n)
        names = [str(start + index) for index in range(count)] if actions is None else actions
        if len(names) != count or len({name.lower() for name in names}) != count:
            raise ConfigError(f"{name}: actions must be {count} different names, got {names}")
        return NamedMoves(names, start), f"Reply with one action a turn: {', '.join(names)}."
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        lows, highs = _bounds(space)
        instruction = f"Reply with {how_to_number(list(zip(lows, highs, strict=True)))} a turn."
        return NumberMoves(lows, highs), instruction
    return str.strip, "Reply with your next action, and nothing else."


def check_space(name: str, space: gymnasium.Space[Any]) -> None:
    """Check that a model can act in this space.

    Raises:
        ConfigError: If the actions are continuous, or of a kind that is not supported.
    """
    from gymnasium import spaces

    from vf.bridges.gym.spaces import UnicodeText

    if isinstance(space, spaces.Box):
        raise ConfigError(
            f"{name} needs continuous actions ({space}), and a model chooses among words: take an "
            "environment with discrete or text actions, or pass a function that returns it in a "
            "wrapper which turns discrete actions into its own (gymnasium.wrappers.TransformAction)"
        )
    several = spaces.MultiDiscrete | spaces.MultiBinary
    flat = isinstance(space, several) and space.shape is not None and len(space.shape) == 1
    if not flat and not isinstance(space, spaces.Discrete | spaces.Text | UnicodeText):
        raise ConfigError(
            f"{name} needs actions of {space}: only Discrete, Text, and MultiDiscrete or "
            "MultiBinary of one dimension are supported; pass a function that returns it in a "
            "wrapper with one of these"
        )


def _bounds(space: Any) -> tuple[list[int], list[int]]:
    from gymnasium import spaces

    if isinstance(space, spaces.MultiBinary):
        count = int(space.shape[0])
        return [0] * count, [1] * count
    lows = [int(low) for low in space.start]
    return lows, [low + int(n) - 1 for low, n in zip(lows, space.nvec, strict=True)]
