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
class Reference:
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

    def __str__(self) -> str:
        return f"{self.what} {self.id!r}"

    @property
    def label(self) -> str:
        """A short name, for results and messages: ``my_env``, or ``my_env:MyEnv``."""
        stem = self.module.rpartition(".")[2] if self.file is not None else self.module
        return f"{stem}:{self.name}" if self.name else stem


def parse_reference(id: str, taken: Callable[[str], bool] = lambda name: False) -> Reference | None:
    """Return the file or module that an id names; None if it is a registered name.

    Args:
        id: The id.
        taken: Whether a name is that of a registered environment, which then is chosen.
    """
    where, _, name = id.partition(":")
    if where.endswith(".py"):
        file = Path(os.path.abspath(os.path.expanduser(where)))
        return Reference(id, file, _module_name(file), name)
    if taken(where) or not all(part.isidentifier() for part in where.split(".")):
        return None
    # A single word may be a mistyped name, so it is a module's only with something after it.
    if "." in where or (name.isidentifier() and _is_module(where)):
        return Reference(id, None, where, name)
    return None


def absolute(id: str, folder: Path) -> str:
    """Return an id in which the path of a file no longer depends on the working directory.

    Args:
        id: Any environment's id.
        folder: The folder that a relative path begins at.
    """
    where, colon, name = id.partition(":")
    if not where.endswith(".py"):
        return id
    return f"{os.path.abspath(folder / os.path.expanduser(where))}{colon}{name}"


def load(reference: Reference) -> ModuleType:
    """Import the module of a reference.

    The folder that it is imported from is put at the front of ``sys.path``, as Python does for a
    program: so the file finds those beside it, and a worker process finds the file.

    Raises:
        ConfigError: If there is no such file or module, its import fails (with the author's lines
            of the traceback), or its name is that of another module.
    """
    if reference.file is not None:
        _check_file(reference, reference.file)
        folder = reference.file.parents[reference.module.count(".")]
    else:
        folder = Path.cwd()
    _put_first(str(folder), always=reference.file is not None)
    try:
        module = importlib.import_module(reference.module)
    except (Exception, SystemExit) as error:  # whatever the author's code raises
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and reference.file is None and f"{reference.module}.".startswith(f"{missing}."):
            raise ConfigError(
                f"{reference}: there is no module {missing!r}"
                f"{', and no environment of that name' * (reference.what == 'environment')}. "
                f"Modules are looked for in {folder} and among what is installed. To name a file, "
                "write its .py"
            ) from None
        raise ConfigError(
            f"{reference}: importing {reference.file or reference.module} failed:\n"
            f"{author_lines(error, reference.module)}"
        ) from error
    imported = getattr(module, "__file__", None)
    if reference.file is not None and not (imported and os.path.samefile(imported, reference.file)):
        raise ConfigError(
            f"{reference}: the name of {reference.file.name} is that of another module, "
            f"{imported or 'built into Python'}; rename the file"
        )
    return module


def load_object(reference: str, what: str) -> Any:
    """Return the object with a name in a module or a file.

    Args:
        reference: ``"module:name"`` or ``"file.py:name"``; a relative path begins at the working
            directory.
        what: The setting that names the object, for the errors.

    Raises:
        ConfigError: If it cannot be loaded, or there is nothing of this name.
    """
    where, _, name = reference.partition(":")
    parsed = parse_reference(reference) or Reference(reference, None, where, name)
    if not name or not (parsed.file or all(part.isidentifier() for part in where.split("."))):
        raise ConfigError(
            f"{what} = {reference!r} must be 'module:name' or 'file.py:name', such as "
            "'./scoring.py:rubric'"
        )
    module = load(replace(parsed, what=what))
    if not hasattr(module, name):
        names = [attribute for attribute in vars(module) if not attribute.startswith("_")]
        raise ConfigError(
            f"{what} {reference!r}: there is no {name!r} in {where}.{did_you_mean(name, names)}"
        )
    return getattr(module, name)


def find_in(reference: Reference, registered: Mapping[str, Any]) -> Factory:
    """Return the class or function of a reference that makes its environment.

    Args:
        reference: The file or module, and the name in it.
        registered: All registered environments, to which the module may add its own.

    Raises:
        ConfigError: If it cannot be loaded, holds no environment, or several and none was named.
    """
    module = load(reference)
    offers = _environments(module) | {
        id: factory for id, factory in registered.items() if _is_from(factory, module)
    }
    if reference.name:
        return _named(reference, module, offers)
    ids = [id for id in offers if id in registered]
    chosen = ids or _leaves(offers)
    if len(chosen) == 1:
        return _factory(offers[chosen[0]], module)
    where = reference.id.partition(":")[0]
    if not chosen:
        raise ConfigError(
            f"{reference}: there is no environment in {where}. Write a class that "
            "inherits from vf.Environment, or name a function that returns one: "
            f"{where}:FUNCTION"
        )
    listed = ", ".join(f"{where}:{name}" for name in chosen)
    raise ConfigError(
        f"{reference}: there are {len(chosen)} environments in {where}; name one of them: {listed}"
    )


def _named(reference: Reference, module: ModuleType, offers: Mapping[str, Any]) -> Factory:
    where = reference.id.partition(":")[0]
    offer = offers.get(reference.name, getattr(module, reference.name, None))
    if offer is None:
        raise ConfigError(
            f"{reference}: there is no {reference.name!r} in {where}."
            f"{did_you_mean(reference.name, offers)} Its environments: "
            f"{', '.join(offers) or 'none'}"
        )
    if not (callable(offer) or isinstance(offer, Environment | str)):
        raise ConfigError(
            f"{reference}: {reference.name} in {where} is not an environment, nor a class "
            f"or function that makes one, but {type(offer).__name__}"
        )
    return _factory(offer, module)


def _factory(offer: Any, module: ModuleType) -> Factory:
    if isinstance(offer, str):  # registered as "module:name"
        return getattr(module, offer.partition(":")[2])  # type: ignore[no-any-return]
    if isinstance(offer, Environment):
        return lambda: copy.copy(offer)
    return offer  # type: ignore[no-any-return]


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
            not any(issubclass(factory, kind) for factory in kinds if factory is not kind)
            and not any(type(value) is kind for value in offers.values())
        )
    ]


def _is_from(factory: Any, module: ModuleType) -> bool:
    home = factory.partition(":")[0] if isinstance(factory, str) else factory.__module__
    return home == module.__name__


def _check_file(reference: Reference, file: Path) -> None:
    if not file.is_file():
        names = [path.name for path in file.parent.glob("*.py")]
        raise ConfigError(f"{reference}: there is no file {file}.{did_you_mean(file.name, names)}")
    if "." in file.stem:
        raise ConfigError(
            f"{reference}: Python cannot import {file.name}, for the dot in its "
            "name; rename the file"
        )
    if reference.module in sys.stdlib_module_names or reference.module == "vf":
        raise ConfigError(
            f"{reference}: {reference.module!r} is the name of another module; rename "
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
