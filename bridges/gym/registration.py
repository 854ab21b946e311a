"""Our environments' ids in Gymnasium: ``guess-number`` is ``vf/GuessNumber-v0`` there.

To register is to write a few lines into Gymnasium's registry; an environment's own module is
imported when it is made. Gymnasium before 1.0 finds :func:`register_all` by the entry point
``gymnasium.envs``. Later ones look for no plugins: there, ``import vf`` does it, before or after
``import gymnasium``, and so does ``gymnasium.make("vf:vf/GuessNumber-v0")`` alone.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from vf.runtime.errors import ConfigError

NAMESPACE = "vf"
ENTRY_POINT = "vf.bridges.gym.as_gym:GymnasiumEnv"
_ENVIRONMENTS = "vf.environments"  # the registry's group; importing the registry takes longer


def gymnasium_id(id: str, class_name: str = "") -> str:
    """Return what an environment is called in Gymnasium, such as ``vf/GuessNumber-v0``.

    Args:
        id: Its name here.
        class_name: The name of its class, which says how to capitalise: that of ``geo-qa`` is
            ``GeoQA``.

    Raises:
        ConfigError: The name holds neither letters nor digits.
    """
    words = re.findall(r"[A-Za-z0-9]+", id)
    if not words:
        raise ConfigError(f"environment {id!r}: Gymnasium's ids are of letters and digits")
    name = "".join(word[0].upper() + word[1:] for word in words)
    if class_name.lower() == name.lower():
        name = class_name
    return f"{NAMESPACE}/{name}-v0"


def register_gymnasium(id: str) -> str:
    """Give an environment that was registered with ``vf.register`` an id in Gymnasium.

    Those of installed packages have theirs already.

    Example::

        vf.register("capitals", Capitals)
        env = gymnasium.make(register_gymnasium("capitals"))

    Args:
        id: The name it was registered under.

    Returns:
        The id in Gymnasium: ``vf/Capitals-v0``.

    Raises:
        ConfigError: There is no such environment, another one has its id in Gymnasium, or
            Gymnasium is not installed.
    """
    from vf.environments.registry import find
    from vf.runtime.extras import load

    registry = load("gymnasium.envs.registration", "gym").registry
    name = gymnasium_id(id, getattr(find(id), "__name__", ""))
    known = registry.get(name)
    if known is not None and known.kwargs.get("environment") != id:
        other = known.kwargs.get("environment")
        raise ConfigError(f"environment {id!r}: in Gymnasium {name} is {other!r}; rename one")
    if known is None:
        _register(name, id)
    return name


def register_all() -> None:
    """Register every environment of the installed packages with Gymnasium, if it is not yet.

    Of two names that would be the same in Gymnasium, the first in the alphabet gets it.
    """
    from importlib.metadata import entry_points

    from gymnasium.envs.registration import registry

    for point in sorted(entry_points(group=_ENVIRONMENTS), key=lambda point: point.name):
        try:
            name = gymnasium_id(point.name, point.value.rpartition(":")[2])
        except ConfigError:
            continue  # a name of somebody's that Gymnasium cannot have must not break its import
        if name not in registry:
            _register(name, point.name)


def register_with_gymnasium() -> None:
    """Register every environment now if Gymnasium is loaded, or else as soon as it is."""
    if sys.modules.get("gymnasium") is not None:
        register_all()
    elif not any(isinstance(finder, _Watcher) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watcher())


def _register(name: str, id: str) -> None:
    from gymnasium.envs.registration import register

    register(name, ENTRY_POINT, reward_threshold=1.0, kwargs={"environment": id})


class _Watcher(MetaPathFinder, Loader):
    """Waits for the import of Gymnasium, and changes nothing else about it."""

    loader: Loader

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "gymnasium":
            return None
        spec = _find_otherwise(sys.meta_path, self, name)
        if spec is not None and spec.loader is not None:
            self.loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        module.__loader__ = self.loader
        self.loader.exec_module(module)
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        register_all()


def _find_otherwise(finders: Iterable[object], watcher: _Watcher, name: str) -> ModuleSpec | None:
    for finder in finders:
        if finder is not watcher:
            spec: ModuleSpec | None = getattr(finder, "find_spec", PathFinder.find_spec)(name, None)
            if spec is not None:
                return spec
    return None
