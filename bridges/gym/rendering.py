"""Telling a model what a Gymnasium environment shows."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from vf.runtime.errors import ConfigError

if TYPE_CHECKING:
    import gymnasium

# Returns the text of an observation; the environment is there to be looked at.
Render: TypeAlias = Callable[[Any, "gymnasium.Env[Any, Any]"], str]

_MARKED = re.compile(r"\x1b\[(?:\d+;)*4\d(?:;\d+)*m(.*?)\x1b\[0m", re.DOTALL)
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_MOST_NUMBERS = 64  # of an array that is told number by number


def default_render(observation: Any, env: gymnasium.Env[Any, Any]) -> str:
    """Return a text as it is, else the environment's own ``ansi`` rendering, else the numbers.

    Of colours only a background is kept, as brackets: there a game marks where one is.
    """
    if isinstance(observation, str):
        return observation
    if env.render_mode == "ansi":
        return _COLOUR.sub("", _MARKED.sub(r"[\1]", str(env.render()))).strip("\n")
    return f"Observation: {numbers(observation)}"


def numbers(observation: Any) -> str:
    """Write an observation's numbers down, rounded to three digits.

    Raises:
        ConfigError: It is larger than a model could read.
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

    Each number is told as a bin from -h to h, h being half of the bins: 0 is the middle, -h and h
    are the ends of its range and all beyond.

    Example::

        GymEnvironment("MountainCar-v0", render=binned({"position": 1.2, "velocity": 0.07}))

    Args:
        ranges: For each number of the observation, in order, its name and the value whose
            magnitude is the end of its range.
        bins: How many there are: odd, at least 3.

    Raises:
        ConfigError: An argument is out of range.
    """
    if bins < 3 or bins % 2 == 0:
        raise ConfigError(f"binned: bins must be odd and at least 3, got {bins}")
    for name, end in ranges.items():
        if not end > 0:
            raise ConfigError(f"binned: the range of {name!r} must end above 0, got {end}")
    half = bins // 2

    def render(observation: Any, env: gymnasium.Env[Any, Any]) -> str:
        told = []
        for (name, end), value in zip(ranges.items(), observation, strict=True):
            share = max(-1.0, min(1.0, float(value) / end))
            told.append(f"{name}: {round(share * half)}")
        return f"{', '.join(told)} (each from {-half} to {half})"

    return render
