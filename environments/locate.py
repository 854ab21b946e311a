"""Environments in a file or a module, which need not be installed.

./my_env.py            the one environment in a file
my_env.py:MyEnv        a class, object or function of it, or a name that it registers
pkg.module:MyEnv       the same in a module
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from vf.environments.environment import Environment
from vf.runtime.errors import ConfigError, author_lines, did_you_mean

Factory = Callable[..., Environment]


@dataclass(frozen=True, slots=True)
class Place:
    """Where an environment is written.

    Attributes:
        id: As the user named it.
        file: The Python file, or None.
        module: The module's name; that of a file is what follows from where it lies.
        name: The name in it; ``""`` for the only environment that is there.
        what: What it is, for the errors.
    """

    id: str
    file: Path | None
    module: str
    name: str
    what: str = "environment"

    @property
    def label(self) -> str:
        """A short name, for results and messages: ``my_env``, or ``my_env:MyEnv``."""
        stem = self.module.rpartition(".")[2] if self.file is not None else self.module
        return f"{stem}:{self.name}" if self.name else stem


def place_of(id: str, taken: Callable[[str], bool] = lambda name: False) -> Place | None:
    """Return the place that an environment's id names; None if it is a registered name.

    Args:
        id: The id.
        taken: Whether a name is that of a registered environment, which then is chosen.
    """
    where, _, name = id.partition(":")
    if where.endswith(".py"):
        file = Path(os.path.abspath(os.path.expanduser(where)))
        return Place(id, file, _module_name(file), name)
    if taken(where) or not all(part.isidentifier() for part in where.split(".")):
        return None
    # A single word may be a mistyped name, so it is a module's only with something after it.
    if "." in where or (name.isidentifier() and _is_module(where)):
        return Place(id, None, where, name)
    return None


def absolute(id: str, folder: Path) -> str:
    """Return an id in which the path of a file no longer depends on the working directory.

    Args:
        id: Any environment's id.
        folder: What a relative path begins at.
    """
    where, colon, name = id.partition(":")
    if not where.endswith(".py"):
        return id
    return f"{os.path.abspath(folder / os.path.expanduser(where))}{colon}{name}"


def load(place: Place) -> ModuleType:
    """Import the module at a place.

    The folder that it is imported from is put at the front of ``sys.path``, as Python does for a
    program: so the file finds those beside it, and a worker process finds the file.

    Raises:
        ConfigError: There is no such file or module, its import fails (with the author's lines of
            the traceback), or its name is that of another module.
    """
    if place.file is not None:
        _check_file(place, place.file)
        folder = place.file.parents[place.module.count(".")]
    else:
        folder = Path.cwd()
    _put_first(str(folder), always=place.file is not None)
    try:
        module = importlib.import_module(place.module)
    except (Exception, SystemExit) as error:  # whatever the author's code raises
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and place.file is None and f"{place.module}.".startswith(f"{missing}."):
            raise ConfigError(
                f"{place.what} {place.id!r}: there is no module {missing!r}"
                f"{', and no environment of that name' * (place.what == 'environment')}. Modules "
                f"are looked for in {folder} and among what is installed. To name a file, write "
                "its .py"
            ) from None
        raise ConfigError(
            f"{place.what} {place.id!r}: importing {place.file or place.module} failed:\n"
            f"{author_lines(error, place.module)}"
        ) from error
    found = getattr(module, "__file__", None)
    if place.file is not None and not (found and os.path.samefile(found, place.file)):
        raise ConfigError(
            f"{place.what} {place.id!r}: the name of {place.file.name} is that of another module, "
            f"{found or 'built into Python'}; rename the file"
        )
    return module


def load_object(reference: str, what: str) -> Any:
    """Return the object with a name in a module or a file.

    Args:
        reference: ``"module:name"`` or ``"file.py:name"``; a relative path begins at the working
            directory.
        what: What it is, for the errors.

    Raises:
        ConfigError: It cannot be loaded, or there is nothing of this name.
    """
    where, _, name = reference.partition(":")
    place = place_of(reference) or Place(reference, None, where, name)
    if not name or not (place.file or all(part.isidentifier() for part in where.split("."))):
        raise ConfigError(
            f"{what} = {reference!r} must be 'module:name' or 'file.py:name', such as "
            "'./scoring.py:rubric'"
        )
    module = load(replace(place, what=what))
    if not hasattr(module, name):
        names = [each for each in vars(module) if not each.startswith("_")]
        raise ConfigError(
            f"{what} {reference!r}: there is no {name!r} in {where}.{did_you_mean(name, names)}"
        )
    return getattr(module, name)


def find_in(place: Place, registered: Mapping[str, Any]) -> Factory:
    """Return the class or function at a place that makes its environment.

    Args:
        place: Where it is.
        registered: All registered environments, to which the module may add its own.

    Raises:
        ConfigError: It cannot be loaded, holds no environment, or several and none was named.
    """
    module = load(place)
    offers = _environments(module) | {
        id: factory for id, factory in registered.items() if _is_from(factory, module)
    }
    if place.name:
        return _named(place, module, offers)
    ids = [id for id in offers if id in registered]
    chosen = ids or _leaves(offers)
    if len(chosen) == 1:
        return _factory(offers[chosen[0]], module)
    where = place.id.partition(":")[0]
    if not chosen:
        raise ConfigError(
            f"environment {place.id!r}: there is no environment in {where}. Write a class that "
            "inherits from vf.Environment, or name a function that returns one: "
            f"{where}:FUNCTION"
        )
    listed = ", ".join(f"{where}:{name}" for name in chosen)
    raise ConfigError(
        f"environment {place.id!r}: there are {len(chosen)} environments in {where}; name one of "
        f"them: {listed}"
    )


def _named(place: Place, module: ModuleType, offers: Mapping[str, Any]) -> Factory:
    where = place.id.partition(":")[0]
    found = offers.get(place.name, getattr(module, place.name, None))
    if found is None:
        raise ConfigError(
            f"environment {place.id!r}: there is no {place.name!r} in {where}."
            f"{did_you_mean(place.name, offers)} Its environments: {', '.join(offers) or 'none'}"
        )
    if not (callable(found) or isinstance(found, Environment | str)):
        raise ConfigError(
            f"environment {place.id!r}: {place.name} in {where} is not an environment, nor a class "
            f"or function that makes one, but {type(found).__name__}"
        )
    return _factory(found, module)


def _factory(found: Any, module: ModuleType) -> Factory:
    if isinstance(found, str):  # registered as "module:name"
        return getattr(module, found.partition(":")[2])  # type: ignore[no-any-return]
    if isinstance(found, Environment):
        return lambda: copy.copy(found)
    return found  # type: ignore[no-any-return]


def is_environment(value: object) -> bool:
    """Return whether something is an environment, or a class of environments."""
    if isinstance(value, type):
        return issubclass(value, Environment) and value is not Environment
    return isinstance(value, Environment)


def _environments(module: ModuleType) -> dict[str, Any]:
    """Return the environments that a module defines, classes and objects, by name."""
    return {
        name: value
        for name, value in vars(module).items()
        if is_environment(value)
        and (not isinstance(value, type) or value.__module__ == module.__name__)
    }


def _leaves(offers: Mapping[str, Any]) -> list[str]:
    """Return the names that can be meant: not a class that another one, or an object, is of."""
    values = {id(value): name for name, value in offers.items()}  # one of two names for one thing
    kinds = [value if isinstance(value, type) else type(value) for value in offers.values()]
    return [
        name
        for name in values.values()
        if not isinstance(kind := offers[name], type)
        or (
            not any(issubclass(each, kind) for each in kinds if each is not kind)
            and not any(type(value) is kind for value in offers.values())
        )
    ]


def _is_from(factory: Any, module: ModuleType) -> bool:
    home = factory.partition(":")[0] if isinstance(factory, str) else factory.__module__
    return home == module.__name__


def _check_file(place: Place, file: Path) -> None:
    if not file.is_file():
        files = [each.name for each in file.parent.glob("*.py")] if file.parent.is_dir() else []
        raise ConfigError(
            f"{place.what} {place.id!r}: there is no file {file}.{did_you_mean(file.name, files)}"
        )
    if "." in file.stem:
        raise ConfigError(
            f"{place.what} {place.id!r}: Python cannot import {file.name}, for the dot in its "
            "name; rename the file"
        )
    if place.module in sys.stdlib_module_names or place.module == "vf":
        raise ConfigError(
            f"{place.what} {place.id!r}: {place.module!r} is the name of another module; rename "
            f"{file.name}, say to my_{file.name}"
        )


def _module_name(file: Path) -> str:
    """Return the name that a file is imported by: with its packages, if it lies in any."""
    parts, folder = [file.stem], file.parent
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts)


def _put_first(folder: str, *, always: bool) -> None:
    if folder in sys.path and not (always and sys.path[0] != folder):
        return
    sys.path.insert(0, folder)
    importlib.invalidate_caches()


def _is_module(name: str) -> bool:
    if str(Path.cwd()) in sys.path or "" in sys.path:
        return importlib.util.find_spec(name) is not None
    return (Path.cwd() / f"{name}.py").is_file() or importlib.util.find_spec(name) is not None
