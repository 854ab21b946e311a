"""``vf.make("verifiers:<id>")``: an installed environment of the verifiers package."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import distributions
from types import ModuleType
from typing import Any

from vf.bridges.verifiers.checks import check_v0
from vf.environments.environment import Environment
from vf.runtime.errors import ConfigError, author_lines, did_you_mean
from vf.runtime.extras import check_version, load
from vf.sandbox.hosting.source import Sandboxes

SUPPORTED = "0.3.1", "0.5"  # from, up to but without
_LAST_V0 = (0, 4)  # the first without the v0 API
_BUILT_IN = "verifiers.v1.tasksets"


def from_verifiers(
    environment_id: str,
    reward_range: Sequence[float] | None = None,
    eval_args: Mapping[str, Any] | None = None,
    sandbox: Sandboxes | None = None,
    **args: Any,
) -> Environment:
    """Load an installed environment of the verifiers package as a vf-rl environment.

    A package with ``load_environment`` is one of the v0 API, one that exports a ``Taskset`` one
    of v1.

    Args:
        environment_id: The id in verifiers, such as ``"gsm8k"`` or ``"owner/gsm8k"``.
        reward_range: The rewards of verifiers that are worth 0 and 1. Without it, what its
            weights allow, and at least [0, 1].
        eval_args: For v1, whose tasksets have no splits: arguments that the eval split's taskset
            gets instead, such as ``{"split": "test"}``. Without it, both have the same tasks.
        sandbox: For v1, where its tasks run commands, if they do: the settings that
            :func:`~vf.sandbox.hosting.source.sandbox_source` takes; ``"auto"`` by default.
        **args: For v0 the arguments of its ``load_environment``; for v1 the fields of its
            taskset's config.

    Raises:
        ConfigError: If verifiers is not installed, or a version that is not supported; if there is
            no such environment; if it does not take an argument; if its code raised (with the
            author's lines of the traceback); or if it needs what vf-rl cannot provide.
    """
    load("verifiers", "verifiers")
    version = check_version("verifiers", "verifiers", *SUPPORTED)
    name = f"verifiers:{environment_id}"
    module = _import(name, environment_id, version)
    if hasattr(module, "load_environment"):
        if version >= _LAST_V0:
            raise ConfigError(
                f"{name} is an environment of the v0 API, which verifiers "
                f"{'.'.join(map(str, version))} no longer has: pip install 'verifiers>=0.3.1,<0.4'"
            )
        if eval_args is not None:
            raise ConfigError(
                f"{name}: eval_args are for v1 tasksets; this is a v0 environment, which has an "
                "eval_dataset"
            )
        from vf.bridges.verifiers.v0 import V0Environment

        if sandbox is not None:  # its own argument, if it has one
            args = {**args, "sandbox": sandbox}
        return V0Environment(name, _loaded(name, module, args), reward_range)
    from vf.bridges.verifiers.v1 import TasksetEnvironment, load_taskset

    with author(name, module):
        taskset, user = load_taskset(name, environment_id, module, args)
        held_out = None
        if eval_args is not None:
            held_out, _ = load_taskset(name, environment_id, module, {**args, **eval_args})
        return TasksetEnvironment(name, taskset, reward_range, held_out, user, sandbox)


def module_name(environment_id: str) -> str:
    """Return the module that verifiers imports for an environment's id."""
    return environment_id.rpartition("/")[2].partition("@")[0].replace("-", "_")


def installed() -> list[str]:
    """Return the ids of what seem to be environments: installed packages that need verifiers."""
    names = set()
    for package in distributions():
        needs = [line.split(";")[0] for line in package.requires or () if "extra ==" not in line]
        if any(_project(need) == "verifiers" for need in needs):
            names.add(package.name)
    return sorted(names - {"vf-rl"})


def _import(name: str, environment_id: str, version: tuple[int, ...]) -> ModuleType:
    module = module_name(environment_id)
    target = f"{_BUILT_IN}.{module}"
    if not module.isidentifier() or importlib.util.find_spec(target) is None:
        target = module
    try:
        there = module.isidentifier() and importlib.util.find_spec(target) is not None
    except (ImportError, ValueError):
        there = False
    if not there:
        ids = installed()
        raise ConfigError(
            f"there is no installed environment {name!r} (no module {module!r})."
            f"{did_you_mean(environment_id, ids)} Installed packages that need verifiers: "
            f"{', '.join(ids) or 'none'}. Install it with pip, or, from the Environments Hub, "
            f"with: prime env install OWNER/{module.replace('_', '-')}"
        )
    try:
        return importlib.import_module(target)
    except (Exception, SystemExit) as error:
        hint = ""
        if version >= _LAST_V0 and isinstance(error, (AttributeError, ImportError)):
            hint = (
                "\nIf it was written for the v0 API, which this version of verifiers "
                "no longer has: pip install 'verifiers>=0.3.1,<0.4'"
            )
        raise ConfigError(
            f"{name}: importing it failed:\n{author_lines(error, target)}{hint}"
        ) from error


def _loaded(name: str, module: ModuleType, args: Mapping[str, Any]) -> Any:
    """Return what the module's ``load_environment`` makes."""
    loader = module.load_environment
    try:
        inspect.signature(loader).bind(**args)
    except TypeError as error:
        parameters = inspect.signature(loader).parameters
        unknown = next((key for key in args if key not in parameters), "")
        raise ConfigError(
            f"{name}: {error}.{did_you_mean(unknown, parameters)} Its load_environment takes: "
            f"{', '.join(parameters) or 'no arguments'}; reward_range is an argument of vf-rl"
        ) from None
    if threading.current_thread() is not threading.main_thread():
        raise ConfigError(
            f"{name}: verifiers sets signal handlers when it loads a v0 environment, which only "
            "the main thread can; make it there"
        )
    with author(name, module), _handlers_kept():
        environment = loader(**args)
    check_v0(name, environment)
    environment.env_id = environment.env_id or name.partition(":")[2]
    environment.env_args = environment.env_args or dict(args)
    return environment


@contextmanager
def author(name: str, module: ModuleType) -> Iterator[None]:
    """Turn what an author's code raises into an error with the author's lines."""
    try:
        yield
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{name}: loading it failed:\n{author_lines(error, module.__name__)}"
        ) from error


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Keep our signal handlers: verifiers' v0 environments install their own when made."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.getsignal(number) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, handlers, strict=True):
            if handler is not None:
                signal.signal(number, handler)


def _project(requirement: str) -> str:
    name = ""
    for character in requirement.strip():
        if not (character.isalnum() or character in "-_."):
            break
        name += character
    return name.lower()
