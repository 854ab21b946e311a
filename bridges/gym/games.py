"""Gymnasium environments for a model: observations as text, known games' rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    import gymnasium
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from vf.runtime.errors import ConfigError

if TYPE_CHECKING:
    import gymnasium


# Returns the text of an observation; the environment is there to be looked at.
Render: TypeAlias = Callable[[Any, "gymnasium.Env[Any, Any]"], str]

_MARKED = re.compile(r"\x1b\[(?:\d+;)*4\d(?:;\d+)*m(.*?)\x1b\[0m", re.DOTALL)
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_MOST_NUMBERS = 64  # of an array that is listed number by number


def default_render(observation: Any, env: gymnasium.Env[Any, Any]) -> str:
    """Return a text as it is, else the environment's own ``ansi`` rendering, else the numbers.

    Of colours only a background is kept, as brackets: games mark the player's position with it.
    """
    if isinstance(observation, str):
        return observation
    if getattr(env, "render_mode", None) == "ansi":  # PettingZoo's need not have one
        return _COLOUR.sub("", _MARKED.sub(r"[\1]", str(env.render()))).strip("\n")
    return f"Observation: {numbers(observation)}"


def numbers(observation: Any) -> str:
    """Return an observation's numbers as text, rounded to three digits.

    Raises:
        ConfigError: If it is larger than a model could read.
    """
    import numpy as np

    if isinstance(observation, Mapping):
        return ", ".join(f"{name}: {numbers(value)}" for name, value in observation.items())
    if isinstance(observation, tuple):
        return ", ".join(numbers(value) for value in observation)
    array = np.asarray(observation)
    if array.size > _MOST_NUMBERS:
        raise ConfigError(
            f"an observation of {array.size} numbers is more than a model can read: pass render="
        )
    if array.ndim == 0:
        return f"{array.item():.3g}" if isinstance(array.item(), float) else str(array.item())
    return ", ".join(numbers(value) for value in array.ravel())


def binned(ranges: Mapping[str, float], bins: int = 11) -> Render:
    """Return a renderer of continuous observations, in words and a few whole numbers.

    Each number is given as a bin from -h to h, h being half of the bins: 0 is the middle, -h and h
    are the ends of its range and all beyond.

    Example::

        GymEnvironment("MountainCar-v0", render=binned({"position": 1.2, "velocity": 0.07}))

    Args:
        ranges: For each number of the observation, in order, its name and the value whose
            magnitude is the end of its range.
        bins: The number of bins: odd, at least 3.

    Raises:
        ConfigError: If an argument is out of range.
    """
    if bins < 3 or bins % 2 == 0:
        raise ConfigError(f"binned: bins must be odd and at least 3, got {bins}")
    for name, end in ranges.items():
        if not end > 0:
            raise ConfigError(f"binned: the range of {name!r} must end above 0, got {end}")
    half = bins // 2

    def render(observation: Any, env: gymnasium.Env[Any, Any]) -> str:
        parts = []
        for (name, end), value in zip(ranges.items(), observation, strict=True):
            share = max(-1.0, min(1.0, float(value) / end))
            parts.append(f"{name}: {round(share * half)}")
        return f"{', '.join(parts)} (each from {-half} to {half})"

    return render


# The returns that are worth 0 and 1. "turns" stands for the most turns of an episode.
Returns: TypeAlias = tuple[float, float | Literal["turns"]]


@dataclass(frozen=True, slots=True)
class Game:
    """A game of Gymnasium, as described to a model.

    Attributes:
        rules: Its description; begins the prompt.
        actions: The names of its actions, in order.
        returns: The returns that are worth 0 and 1.
        render: A function that describes an observation.
    """

    rules: str
    actions: Sequence[str]
    returns: Returns
    render: Render


def _lake(observation: Any, env: gymnasium.Env[Any, Any]) -> str:
    rows = [[cell.decode() for cell in row] for row in env.unwrapped.desc]  # type: ignore[attr-defined]
    row, column = divmod(int(observation), len(rows[0]))
    rows[row][column] = f"[{rows[row][column]}]"
    board = "\n".join(" ".join(f"{cell:^3}" for cell in cells).rstrip() for cells in rows)
    return f"{board}\nYou stand on [ ], in row {row + 1}, column {column + 1}."


def _taxi(observation: Any, env: gymnasium.Env[Any, Any]) -> str:
    taxi = env.unwrapped
    row, column, passenger, goal = (int(n) for n in taxi.decode(int(observation)))  # type: ignore[attr-defined]
    stands = [
        f"{letter} (row {r + 1}, column {c + 1})"
        for letter, (r, c) in zip("RGYB", taxi.locs, strict=True)  # type: ignore[attr-defined]
    ]
    board = "\n".join(b"".join(line).decode() for line in taxi.desc)  # type: ignore[attr-defined]
    location = "in the taxi" if passenger == len(stands) else f"at {stands[passenger]}"
    return (
        f"{board}\nThe taxi is in row {row + 1}, column {column + 1}. The passenger is {location} "
        f"and wants to go to {stands[goal]}."
    )


def _blackjack(observation: Any, env: gymnasium.Env[Any, Any]) -> str:
    total, dealer, usable = (int(n) for n in observation)
    ace = " with an ace that counts 11" if usable else ""
    shown = "an ace" if dealer == 1 else str(dealer)
    return f"Your cards sum to {total}{ace}. The dealer shows {shown}."


_CART = {"cart position": 2.4, "cart velocity": 3.0, "pole angle": 0.2095, "pole velocity": 3.0}
_LAKE = Game(
    rules=(
        "Cross the frozen lake from S to G. F is ice; whoever steps on H falls into a hole, and "
        "the game is over. The ice may be slippery: then you do not always go where you want."
    ),
    actions=("left", "down", "right", "up"),
    returns=(0.0, 1.0),
    render=_lake,
)
_GAMES = {
    "FrozenLake": _LAKE,
    "FrozenLake8x8": _LAKE,
    "Taxi": Game(
        rules=(
            "Drive the taxi to the passenger, pick up, drive to where they want to go, and drop "
            "off there. A | on the map is a wall, a : can be crossed; rows are counted from the "
            "north, columns from the west. Every turn costs 1 point, a pickup or dropoff in the "
            "wrong place 10, and arriving earns 20."
        ),
        actions=("south", "north", "east", "west", "pickup", "dropoff"),
        # Without arriving, points are only lost. The longest of the shortest ways earns 3.
        returns=(0.0, 3.0),
        render=_taxi,
    ),
    "Blackjack": Game(
        rules=(
            "Play blackjack against the dealer: come closer to 21 than the dealer does, and not "
            "above. Hit takes a card, stick ends your turn. Face cards count 10, an ace 1 or 11. "
            "The dealer sticks from 17 on."
        ),
        actions=("stick", "hit"),
        returns=(-1.0, 1.0),
        render=_blackjack,
    ),
    "CartPole": Game(
        rules=(
            "A pole stands on a cart. Push the cart left or right so that the pole does not fall "
            "and the cart stays in the middle. Negative is left, positive right; the game is over "
            "when the cart's position or the pole's angle leaves its range."
        ),
        actions=("left", "right"),
        returns=(0.0, "turns"),
        render=binned(_CART),
    ),
}


def known_game(env: gymnasium.Env[Any, Any]) -> Game | None:
    """Return the game of an environment; None if it is not one of these.

    A wrapper that changes its spaces makes it another game.
    """
    spec = env.spec
    if spec is None or spec.namespace is not None or spec.name not in _GAMES:
        return None
    same = (
        env.observation_space == env.unwrapped.observation_space
        and env.action_space == env.unwrapped.action_space
    )
    return _GAMES[spec.name] if same else None
