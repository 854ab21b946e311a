"""A user's own loss, found by its ``import_path``."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from vf.runtime.errors import ConfigError
from vf.runtime.toml import checked
from vf.trainer.settings.config import TrainerArgs

Loss = str | Callable[[Any], Any] | None  # its name, itself, or that of the settings


def load_loss(path: str) -> Callable[[Any], Any]:
    """Return the function at ``package.module:function`` or ``file.py:function``.

    It gets one :class:`~vf.trainer.learning.losses.policy_gradient.LossArrays`, and returns the
    loss of each token, float ``[B, L]``, or a
    :class:`~vf.trainer.learning.losses.policy_gradient.TokenLosses`. A file is looked for from the
    current folder.

    Raises:
        ConfigError: If there is no such module or function, its import fails, or it does not take
            one argument.
    """
    where, colon, name = path.rpartition(":")
    if not colon or not where or not name:
        raise ConfigError(
            f"trainer.args.import_path = {path!r}: must be 'package.module:function' or "
            "'file.py:function'"
        )
    try:
        module = (
            _from_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
        )
    except Exception as error:
        raise ConfigError(
            f"trainer.args.import_path = {path!r}: importing {where!r} raised "
            f"{type(error).__name__}: {error}"
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigError(
            f"trainer.args.import_path = {path!r}: {where!r} has no function {name!r}"
        )
    try:
        inspect.signature(function).bind(None)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"trainer.args.import_path = {path!r}: it must take one argument, the LossArrays: "
            f"{error}"
        ) from error
    loaded: Callable[[Any], Any] = function
    return loaded


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path.resolve()}")
    name = f"vf_custom_loss_{path.stem}"  # so that it hides no module of the file's own name
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded as a module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses in it look their module up
    spec.loader.exec_module(module)
    return module


def check_loss(loss: Loss, args: TrainerArgs, *, shared: bool) -> None:
    """Check a loss that is given in place of the settings' own.

    Args:
        loss: The name of a loss, or a function.
        args: ``[trainer.args]``.
        shared: Whether other trainer processes have to import it.

    Raises:
        ConfigError: If there is none of this name, it is neither, or it cannot be imported.
    """
    if loss is None or loss == args.loss_fn:
        return
    if isinstance(loss, str):
        checked(TrainerArgs, {"loss_fn": loss})
    elif not callable(loss):
        raise ConfigError(f"loss_fn = {loss!r}: it is a name or a function")
    elif shared:
        try:
            pickle.dumps(loss)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConfigError(
                "loss_fn: other trainer processes import it, so it must be a function at the top "
                f"of a module: {error}"
            ) from error
