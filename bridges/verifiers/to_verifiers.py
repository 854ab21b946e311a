"""`to_verifiers`: what a module needs, so that verifiers and prime-rl load it by its name."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from vf.bridges.verifiers.from_verifiers import SUPPORTED
from vf.runtime.errors import ConfigError
from vf.runtime.extras import check_version, load

if TYPE_CHECKING:
    from vf.bridges.verifiers.exposed import Plugin


def to_verifiers(id: str = "", **kwargs: Any) -> Plugin:
    """Return an environment as the classes that verifiers and prime-rl load.

    The environment runs its own rollouts, with its tools, limits, sandboxes and rubric, in the
    process of verifiers' worker; verifiers serves the model and records the tokens. The reward is
    the rubric's.

    Without an id, the classes are those of any environment, which the configuration names:
    ``env.taskset.environment``. That is what verifiers loads as ``vf-rl``.

    Example::

        # capitals_rl.py, somewhere that Python imports from: the taskset id is "capitals-rl"
        import vf

        Taskset, Harness, Env = vf.to_verifiers("calculator", max_operations=2)
        __all__ = ["Env", "Harness", "Taskset"]

    Args:
        id: Its name, as for :func:`vf.make`.
        **kwargs: Its arguments, which must be JSON; ``env.taskset.args`` adds to them.

    Raises:
        ConfigError: If verifiers is missing, or of a version that is not supported; or if the
            arguments are not JSON. That the environment is missing shows when verifiers loads it.
    """
    try:
        arguments = json.dumps(kwargs, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"to_verifiers({id!r}): the arguments travel to other processes as JSON ({error})"
        ) from error
    return _plugin(id, arguments)


@cache  # the same classes each time: verifiers asks a module more than once
def _plugin(id: str, arguments: str) -> Plugin:
    load("verifiers", "verifiers")
    check_version("verifiers", "verifiers", *SUPPORTED)
    load("verifiers.v1", "verifiers")
    from vf.bridges.verifiers.exposed import classes

    return classes(id, json.loads(arguments))
