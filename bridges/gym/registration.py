"""The environments' ids in Gymnasium: ``guess-number`` is ``vf/GuessNumber-v0`` there.

Gymnasium imports the module that an id names before its colon, so ``vf.gym`` calls
:func:`register_all`, and ``gymnasium.make("vf.gym:vf/GuessNumber-v0")`` needs nothing else. To
register is to write a few lines into Gymnasium's registry; an environment's own module is imported
when it is made.
"""

from __future__ import annotations

import re
from importlib.metadata import entry_points

from vf.environments.registry import ENTRY_POINT_GROUP, find
from vf.runtime.errors import ConfigError
from vf.runtime.extras import load

NAMESPACE = "vf"
ENTRY_POINT = "vf.bridges.gym.as_gym:GymnasiumEnv"


def gymnasium_id(id: str, class_name: str = "") -> str:
    """Return an environment's id in Gymnasium, such as ``vf/GuessNumber-v0``.

    Args:
        id: The environment's registered name.
        class_name: The name of its class, which decides the capitals: ``geo-qa`` of the class
            ``GeoQA`` is ``vf/GeoQA-v0``.

    Raises:
        ConfigError: If the name contains neither letters nor digits.
    """
    words = re.findall(r"[A-Za-z0-9]+", id)
    if not words:
        raise ConfigError(f"environment {id!r}: Gymnasium's ids consist of letters and digits")
    name = "".join(word[0].upper() + word[1:] for word in words)
    if class_name.lower() == name.lower():
        name = class_name
    return f"{NAMESPACE}/{name}-v0"


def register_gymnasium(id: str) -> str:
    """Give an environment that was registered with ``vf.register`` an id in Gymnasium.

    Those of installed packages have ids once ``vf.gym`` is imported.

    Example::

        vf.register("capitals", Capitals)
        env = gymnasium.make(register_gymnasium("capitals"))

    Args:
        id: The name it was registered under.

    Returns:
        The id in Gymnasium: ``vf/Capitals-v0``.

    Raises:
        ConfigError: If there is no such environment, another one has its id in Gymnasium, or
            Gymnasium is not installed.
    """
    registry = load("gymnasium.envs.registration", "gym").registry
    name = gymnasium_id(id, getattr(find(id), "__name__", ""))
    existing = registry.get(name)
    if existing is not None and existing.kwargs.get("environment") != id:
        other = existing.kwargs.get("environment")
        raise ConfigError(f"environment {id!r}: in Gymnasium {name} is {other!r}; rename one")
    if existing is None:
        _register(name, id)
    return name


def register_all() -> None:
    """Register every environment of the installed packages with Gymnasium, unless it already is.

    If two names are the same in Gymnasium, the first in the alphabet gets the id.

    Raises:
        ConfigError: If Gymnasium is not installed.
    """
    registry = load("gymnasium.envs.registration", "gym").registry
    for point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: point.name):
        try:
            name = gymnasium_id(point.name, point.value.rpartition(":")[2])
        except ConfigError:
            continue  # one package's odd name must not break the others
        if name not in registry:
            _register(name, point.name)


def _register(name: str, id: str) -> None:
    from gymnasium.envs.registration import register

    register(name, ENTRY_POINT, reward_threshold=1.0, kwargs={"environment": id})
