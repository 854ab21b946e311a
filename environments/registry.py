"""Environments by name: registered in code, of an installed package, or in a file."""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import math
import os
import re
import sys
from collections.abc import Sequence
from functools import lru_cache, partial
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import Path
from typing import Any

from vf.environments.agent import AgentEnvironment
from vf.environments.environment import Environment
from vf.environments.locate import Factory, find_in, is_environment, parse_reference
from vf.runtime.errors import ConfigError, author_lines, did_you_mean

ENTRY_POINT_GROUP = "vf.environments"
_NUMBER = re.compile(r"\b(?:int|float)\b")
_MISSING = re.compile(r"missing a required (?:keyword-only )?argument: '(\w+)'")
_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "text"}
_TABLE = f'[project.entry-points."{ENTRY_POINT_GROUP}"]'

_registered: dict[str, str | Factory | AgentEnvironment] = {}
_registrars: dict[str, str] = {}  # the module that called `register`, by the environment's name


def register(id: str, factory: str | Factory | AgentEnvironment) -> None:
    """Register an environment under a name.

    Args:
        id: The name that :func:`make` and the TOML's ``[env] id`` use.
        factory: A class or function that returns an environment, or ``"module:name"`` of one,
            imported when it is first made; or an
            :class:`~vf.environments.agent.AgentEnvironment`, which then takes no arguments.

    Raises:
        ConfigError: If the name is taken by something else, or has a colon in it, or the object of
            another class is registered instead of the class.
    """
    if ":" in id:
        raise ConfigError(
            f"environment {id!r}: a name has no colon; what follows one is an argument"
        )
    if not callable(factory) and not isinstance(factory, str | AgentEnvironment):
        raise ConfigError(
            f"environment {id!r}: register its class, or a function that returns one, not the "
            f"object: vf.register({id!r}, {type(factory).__name__})"
        )
    if _registered.get(id, factory) != factory:
        raise ConfigError(f"environment {id!r} is registered already, as {_registered[id]}")
    _registered[id] = factory
    frame = inspect.currentframe()
    if frame is not None and frame.f_back is not None:
        _registrars[id] = str(frame.f_back.f_globals.get("__name__", "__main__"))


def registrar(id: str) -> str | None:
    """Return the module that registered an environment; None where :func:`make` finds it itself.

    Another process has to import this module, before it can make the environment.

    Args:
        id: An id, as :func:`make` takes it.
    """
    return None if parse_reference(id, is_registered) else _registrars.get(id.partition(":")[0])


def registered() -> list[str]:
    """Return the names of all environments that can be made, sorted."""
    return sorted({*_registered, *installed_environments().names})


def installed_environments() -> EntryPoints:
    """Return the entry points of the environments that installed packages bring.

    Reading the metadata of all packages takes a while, so they are read once, and again after a
    folder of ``sys.path`` has changed.
    """
    return _entry_points(tuple((folder, _changed(folder)) for folder in sys.path))


@lru_cache(maxsize=1)
def _entry_points(path: tuple[tuple[str, int], ...]) -> EntryPoints:
    return entry_points(group=ENTRY_POINT_GROUP)


def _changed(folder: str) -> int:
    """Return when a folder's list of files changed, in ns; 0 if there is no such folder."""
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:
        return 0


def _check_numbers(id: str, factory: Factory, kwargs: dict[str, Any]) -> None:
    """Refuse true and false for a number, which Python takes for 1 and 0, and endless numbers.

    Raises:
        ConfigError: If one was given.
    """
    for name, value in kwargs.items():
        parameter = inspect.signature(factory).parameters.get(name)
        annotation = "" if parameter is None else str(parameter.annotation)
        if isinstance(value, bool) and _NUMBER.search(annotation) and "bool" not in annotation:
            raise ConfigError(
                f"environment {id!r}: {name} = {str(value).lower()}: must be a number"
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"environment {id!r}: {name} = {value}: must be a finite number")


def _wrong_kind(factory: Factory, kwargs: dict[str, Any]) -> str:
    """Return which argument is of another kind than it must be; empty if none is known to be."""
    for name, value in kwargs.items():
        parameter = inspect.signature(factory).parameters.get(name)
        annotation = None if parameter is None else parameter.annotation
        text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
        kinds = [kind.strip() for kind in text.split("|")]
        given = "None" if value is None else type(value).__name__
        taken = {*kinds, *(["int"] if "float" in kinds else [])}
        names = [_KINDS.get(kind, "") for kind in kinds if kind != "None"]
        if names and all(names) and given not in taken:
            return f"{name} must be {' or '.join(names)}, not {value!r}"
    return ""


def make(id: str, **kwargs: Any) -> Environment:
    """Make an environment by name.

    Example::

        env = vf.make("calculator", max_operations=2)
        env = vf.make("gym:FrozenLake-v1")
        env = vf.make("./my_env.py")

    Args:
        id: A name. A colon and the first argument may follow, if the environment cannot be made
            without it: ``"gym:Taxi-v3"`` is ``"gym"`` with ``gymnasium_id="Taxi-v3"``. Or the
            location of an environment that is not installed: a file (``"my_env.py"``, and
            ``"my_env.py:MyEnv"`` where it holds several) or a module (``"pkg.module:MyEnv"``). A
            relative path begins at the working directory.
        **kwargs: The other arguments.

    Raises:
        ConfigError: If there is no such environment (the nearest names are shown), two have the
            name, it cannot be imported (with the author's lines of the traceback), it does not
            take one of the arguments, or cannot be made with one of another kind. The message
            names the environment.
    """
    reference = parse_reference(id, is_registered)
    name, colon, first = (id, "", "") if reference is not None else id.partition(":")
    factory = find(name) if reference is None else find_in(reference, _registered)
    if colon:
        parameter = _first_parameter(id, factory)
        if parameter in kwargs:
            raise ConfigError(
                f"environment {id!r}: {parameter} is given twice, here and in its args"
            )
        kwargs[parameter] = first
    try:
        inspect.signature(factory).bind(**kwargs)
    except TypeError as error:
        parameters = inspect.signature(factory).parameters
        unknown = next((name for name in kwargs if name not in parameters), "")
        takes = ", ".join(parameters) or "no arguments"
        wrong = f"it takes no argument {unknown!r}" if unknown else str(error)
        if missing := _MISSING.search(str(error)):
            argument = json.dumps({missing[1]: "..."})
            wrong += f". Give it: --args '{argument}', or args = {{ {missing[1]} = ... }} in a TOML"
        raise ConfigError(
            f"environment {id!r}: {wrong}.{did_you_mean(unknown, parameters)} It takes: {takes}"
        ) from None
    _check_numbers(id, factory, kwargs)
    try:
        environment = factory(**kwargs)
    except ConfigError as error:
        if name in str(error):
            raise
        raise ConfigError(f"environment {id!r}: {error}") from error
    except (TypeError, ValueError) as error:
        if wrong := _wrong_kind(factory, kwargs):
            raise ConfigError(f"environment {id!r}: {wrong}") from error
        raise
    if not isinstance(environment, Environment):
        raise ConfigError(
            f"environment {id!r} gave a {type(environment).__name__}, not a vf.Environment: "
            "name a class that inherits from it, or a function that returns one"
        )
    environment.id = id if reference is None else reference.label
    environment.check_settings()
    return environment


def label(id: str) -> str:
    """Return the short name of an environment: its id, but of a file without its folder."""
    reference = parse_reference(id, is_registered)
    return id if reference is None else reference.label


def is_registered(name: str) -> bool:
    """Return whether an environment has this name, in code or in an installed package."""
    return name in _registered or name in installed_environments().names


def _first_parameter(id: str, factory: Factory) -> str:
    """Return the name of the parameter that what follows the colon is for."""
    name, _, first = id.partition(":")
    parameter = next(iter(inspect.signature(factory).parameters.values()), None)
    if (
        parameter is None
        or parameter.kind is not parameter.POSITIONAL_OR_KEYWORD
        or parameter.default is not parameter.empty
    ):
        raise ConfigError(f"environment {id!r}: nothing goes after the colon; write {name!r}")
    if not first:
        raise ConfigError(f"environment {id!r}: after the colon goes its {parameter.name}")
    return parameter.name


def find(id: str) -> Factory:
    """Return the class or function that makes an environment.

    Raises:
        ConfigError: If there is no such environment (the nearest names are shown), or it cannot
            be imported.
    """
    entry_points = list(
        {point.value: point for point in installed_environments().select(name=id)}.values()
    )
    if id in _registered:
        return _registered_in_code(id, entry_points)
    if len(entry_points) > 1:
        sources = " and ".join(_source(point) for point in entry_points)
        raise ConfigError(
            f"two installed packages offer an environment {id!r}: {sources}. Uninstall one of "
            f"them, or rename one in its pyproject.toml, {_TABLE}"
        )
    if entry_points:
        return _load(
            id, entry_points[0].value, f"in pyproject.toml of {_package(entry_points[0])}, {_TABLE}"
        )
    names = registered()
    file = Path(f"{id}.py")
    hint = f" To use the file {file}, write ./{file}." if file.is_file() else ""
    raise ConfigError(
        f"there is no environment {id!r}.{did_you_mean(id, names)}{hint} "
        f"Known: {', '.join(names) or 'none'}; or name a file, ./my_env.py"
    )


def _registered_in_code(id: str, installed: Sequence[EntryPoint]) -> Factory:
    """Return what was registered, unless an installed package means something else by the name."""
    target = _registered[id]
    factory = _load(id, target, "in vf.register") if isinstance(target, str) else _maker(target)
    written = target if isinstance(target, AgentEnvironment) else factory
    name = getattr(written, "__qualname__", "")
    for point in installed:
        package, _, factory_name = point.value.partition(":")
        # A package may well register what its entry point names, from wherever it lies in it.
        ours = written.__module__.partition(".")[0] == package.partition(".")[0]
        if not (point.value == target or (ours and name in (factory_name, ""))):
            raise ConfigError(
                f"two environments are called {id!r}: {written.__module__}:{name}, registered in "
                f"code, and that of the installed package {_source(point)}. Register yours under "
                "another name, or uninstall the package"
            )
    return factory


def _maker(registered: Any) -> Any:
    """Return what makes an environment: a function that copies one that is made already."""
    return (
        partial(copy.copy, registered) if isinstance(registered, AgentEnvironment) else registered
    )


def _load(id: str, target: str, where: str) -> Factory:
    """Import a factory.

    Args:
        id: The environment's name, for the errors.
        target: ``module:name``.
        where: The place where the target was written, for the errors.
    """
    module, _, name = target.partition(":")
    if not module or not name:
        raise ConfigError(
            f"environment {id!r}: {target!r} must be of the form 'module:name'; correct it {where}"
        )
    try:
        loaded = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # whatever the author's code raises
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module}.".startswith(f"{missing}."):
            raise ConfigError(
                f"environment {id!r}: cannot load {target!r}: there is no module {missing!r}; "
                f"install it, or correct the name {where}"
            ) from error
        raise ConfigError(
            f"environment {id!r}: cannot load {target!r}: importing it failed:\n"
            f"{author_lines(error, module)}"
        ) from error
    if not hasattr(loaded, name):
        names = [
            key
            for key, value in vars(loaded).items()
            if isinstance(value, type) and is_environment(value)
        ]
        raise ConfigError(
            f"environment {id!r}: cannot load {target!r}: {module} has no {name!r}."
            f"{did_you_mean(name, names)} Its environments: {', '.join(names) or 'none'}; "
            f"correct the name {where}"
        )
    factory = _maker(getattr(loaded, name))
    if not callable(factory):
        raise ConfigError(
            f"environment {id!r}: {target!r} is not a class or function, but "
            f"{type(factory).__name__}; correct the name {where}"
        )
    return factory  # type: ignore[no-any-return]


def _source(point: EntryPoint) -> str:
    return f"{_package(point)} ({point.value})"


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "unknown"
