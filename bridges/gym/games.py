"""What Gymnasium does not say of its own games: rules, the names of actions, what returns mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from vf.bridges.gym.rendering import Render, binned

if TYPE_CHECKING:
    import gymnasium

# The returns that are worth 0 and 1. "turns" stands for the most turns of an episode.
Returns: TypeAlias = tuple[float, float | Literal["turns"]]


@dataclass(frozen=True, slots=True)
class Game:
    """A game of Gymnasium's, as a model is told of it.

    Attributes:
        rules: What it is about; begins the prompt.
        actions: The names of its actions, in order.
        returns: The returns that are worth 0 and 1.
        render: Describes an observation.
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
    places = [
        f"{letter} (row {r + 1}, column {c + 1})"
        for letter, (r, c) in zip("RGYB", taxi.locs, strict=True)  # type: ignore[attr-defined]
    ]
    board = "\n".join(b"".join(line).decode() for line in taxi.desc)  # type: ignore[attr-defined]
    where = "in the taxi" if passenger == len(places) else f"at {places[passenger]}"
    return (
        f"{board}\nThe taxi is in row {row + 1}, column {column + 1}. The passenger is {where} "
        f"and wants to go to {places[goal]}."
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
        # Whoever does not arrive has lost points. The longest of the shortest ways earns 3.
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
    """Return what is known of an environment; None if it is not one of these games.

    A wrapper that changes what is seen or done makes it another game.
    """
    spec = env.spec
    if spec is None or spec.namespace is not None or spec.name not in _GAMES:
        return None
    same = (
        env.observation_space == env.unwrapped.observation_space
        and env.action_space == env.unwrapped.action_space
    )
    return _GAMES[spec.name] if same else None
