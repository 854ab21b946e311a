"""The names of a new environment: its id, its package and its class."""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
import unicodedata
from dataclasses import dataclass

from vf.environments.registry import registered
from vf.runtime.errors import ConfigError

_ID = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LONGEST = 50  # characters
_TAKEN = {"tests", "test", "runs", "evals", "build", "dist"}  # folders beside the package


@dataclass(frozen=True, slots=True)
class Names:
    """What a new environment is called.

    Attributes:
        id: For ``vf.make`` and the commands, and the folder: ``word-count``.
        package: What Python imports: ``word_count``.
        cls: The class: ``WordCountEnv``.
    """

    id: str
    package: str
    cls: str


def names_of(id: str) -> Names:
    """Derive the names from an id, and see that they are good and free.

    Raises:
        ConfigError: If the id is not lower-case words joined by hyphens, its package would hide
            a Python module, or an environment of this name exists.
    """
    if not _ID.fullmatch(id):
        near = _nearest(id)
        hint = f", such as {near!r}" if near else ", such as 'word-count'"
        raise ConfigError(
            f"{id!r} is not a name for an environment: it takes lower-case letters and digits in "
            f"words joined by hyphens, a letter first{hint}"
        )
    if len(id) > _LONGEST:
        raise ConfigError(f"{id!r} has {len(id)} characters; take at most {_LONGEST}")
    package = id.replace("-", "_")
    if keyword.iskeyword(package) or package in _TAKEN:
        raise ConfigError(f"{package!r} cannot be the name of a package; take '{id}-env', say")
    if id in registered():
        raise ConfigError(
            f"there is an environment {id!r} already; take another name, or see it with "
            f"`vf-rl eval --validate {id}`"
        )
    if package in sys.stdlib_module_names or _is_module(package):
        raise ConfigError(
            f"a package {package!r} would hide the module {package!r} that Python has here; take "
            f"'{id}-env', say"
        )
    words = [word.capitalize() for word in id.split("-")]
    if words[-1] != "Env":  # and so it is not a name that the file imports
        words.append("Env")
    return Names(id, package, "".join(words))


def _is_module(name: str) -> bool:
    """Return whether Python finds a module of this name; a mere folder is none."""
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None


def _nearest(id: str) -> str | None:
    """Return the valid id that is nearest to what was written, if there is any."""
    plain = unicodedata.normalize("NFKD", id).encode("ascii", "ignore").decode()
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", plain)
    near = re.sub(r"[^a-z0-9]+", "-", spaced.lower()).strip("-")
    near = re.sub(r"^[0-9-]+", "", near)[:_LONGEST].strip("-")
    return near if _ID.fullmatch(near) else None
