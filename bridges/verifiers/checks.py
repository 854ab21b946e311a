"""Refuses, at load time, environments of verifiers that need what vf-rl cannot provide."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NoReturn

from vf.runtime.errors import ConfigError

# Classes by name: to import them would import what they need.
_NEEDS = {
    "CliAgentEnv": "an agent's program in a sandbox of its own",
    "BrowserEnv": "a remote browser",
    "SandboxEnv": "Prime's remote sandboxes",
    "SandboxMixin": "Prime's remote sandboxes",
    "OpenEnvEnv": "OpenEnv's server in a container (see vf.make('openenv:...') for those)",
}
_REWRITING = ("get_prompt_messages", "get_model_response", "add_model_response", "rollout")


def refuse(name: str, needs: str, instead: str = "") -> NoReturn:
    """Raise a ConfigError: an environment needs what vf-rl cannot provide."""
    raise ConfigError(
        f"{name}: it needs {needs}, which cannot be given here"
        f"{'; ' + instead if instead else ''}. It can be run with verifiers itself"
    )


def leaves(theirs: Any) -> list[Any]:
    """Return the environments of a group, or the one that it is."""
    members = getattr(theirs, "envs", None)
    if members is None:
        return [theirs]
    return [leaf for member in members for leaf in leaves(member)]


def check_v0(name: str, theirs: Any) -> None:
    """Refuse a v0 environment that needs what vf-rl cannot provide.

    Raises:
        ConfigError: If it is refused; the message says why.
    """
    import verifiers.legacy as verifiers

    if not isinstance(theirs, verifiers.Environment):
        raise ConfigError(
            f"{name}: load_environment returned {type(theirs).__name__}, which is not a "
            "verifiers.Environment"
        )
    for environment in leaves(theirs):
        cls = type(environment)
        for base in cls.__mro__:
            if base.__name__ in _NEEDS and base.__module__.startswith("verifiers."):
                refuse(name, f"{_NEEDS[base.__name__]} ({cls.__name__})")
        if not isinstance(environment, verifiers.MultiTurnEnv):
            refuse(name, f"a rollout loop of its own ({cls.__name__} is no MultiTurnEnv)")
        for method in _REWRITING:
            if not _is_theirs(cls, method):
                refuse(name, f"to shape each request itself ({cls.__name__}.{method})")
        if environment.message_type != "chat":
            refuse(name, "plain completions", "only chats are supported")
        if not environment.score_rollouts:
            refuse(name, "its rewards from elsewhere (score_rollouts is False)")
        if getattr(environment, "provides_advantages", False):
            refuse(name, "its own advantages (vf-rl computes them from rewards)")
        if environment.tool_defs != leaves(theirs)[0].tool_defs:
            refuse(name, "other tools in each of its environments", "load them one by one")


def is_rebuilt_from_messages(theirs: Any) -> bool:
    """Return whether an environment's state holds nothing but the messages.

    Then a saved trace can be scored as the live rollout was.
    """
    import verifiers.legacy as verifiers

    plain = {"multiturn_env", "singleturn_env", "tool_env"}
    methods = ("setup_state", "env_response", "render_completion", "add_trajectory_step")
    return not hasattr(theirs, "envs") and all(
        not isinstance(environment, verifiers.StatefulToolEnv)
        and len(environment._cleanup_handlers) == 1  # its own, which renders the completion
        and all(
            getattr(type(environment), method).__module__.rpartition(".")[2] in plain
            and _is_theirs(type(environment), method)
            for method in methods
        )
        for environment in leaves(theirs)
    )


def _is_theirs(cls: type, method: str) -> bool:
    module: str = getattr(cls, method).__module__
    return module.startswith("verifiers.")


def check_package(name: str, environment_id: str) -> None:
    """Refuse a taskset whose package has a harness.

    Raises:
        ConfigError: If it has one.
    """
    from verifiers.v1.utils.loaders import default_harness_id

    if default_harness_id(environment_id) == environment_id:
        refuse(name, "its own harness, a program that the model acts through")


def check_v1(name: str, taskset: Any, task: Any, *, user: bool = False) -> None:
    """Refuse a taskset that needs what vf-rl cannot provide.

    Args:
        name: The environment's name, for messages.
        taskset: The taskset.
        task: Its first task.
        user: Whether its package plays a user, who can open the conversation.

    Raises:
        ConfigError: If it is refused; the message says why.
    """
    cls = type(task).__name__
    if task.NEEDS_CONTAINER:
        refuse(name, f"a container ({cls}.NEEDS_CONTAINER)")
    _check_hooks(name, task)
    for toolset in (
        *type(task).toolsets(task.config),
        *type(taskset).toolsets(taskset.config),
    ):
        _check_placement(name, toolset)
    check_data(name, task.data, user=user)


def check_data(name: str, data: Any, *, user: bool = False) -> None:
    """Refuse a task whose data asks for what vf-rl cannot provide.

    Raises:
        ConfigError: If it is refused; the message says why.
    """
    label = f"{name}: task {data.idx if data.name is None else data.name!r}"
    if data.prompt is None and not user:
        refuse(label, "a user to open the conversation (it has no prompt)")
    for field, what in (
        ("image", "a container with the image"),
        ("artifacts", "a runtime for its artifacts"),
        ("skills", "a harness with skills"),
        ("network_block", "a runtime with a network policy"),
    ):
        if getattr(data, field, None):
            refuse(label, f"{what} {getattr(data, field)!r}")
    if "*" not in data.network_allow:
        refuse(label, f"a runtime with a network policy {data.network_allow!r}")


def _check_hooks(name: str, task: Any) -> None:
    import verifiers.v1 as v1
    from verifiers.v1.session import hook_boundary
    from verifiers.v1.utils.decorators import discover_decorated

    for fn in discover_decorated(task, "intercept"):
        refuse(name, f"to intercept the model's requests ({fn.__qualname__})")
    for fn in task.hooks("stop"):
        if hook_boundary(fn, allow_trace=True) is not v1.Trace:
            refuse(name, f"to look into the model's requests ({fn.__name__}, a @vf.stop)")


def _check_placement(name: str, toolset: Any) -> None:
    """Refuse a tool set that has to be started in another process."""
    config = toolset.config
    cls = type(toolset).__name__
    if getattr(config, "url", None):
        return  # it runs already
    runtime = getattr(getattr(config, "runtime", None), "type", "subprocess")
    if runtime != "subprocess" or getattr(config, "colocated", False):
        where = "the agent's own runtime" if config.colocated else f"a {runtime} runtime"
        refuse(name, f"{where} for the tools of {cls}")


def uses_runtime(task: Any) -> bool:
    """Return whether any function of a v1 task runs commands, or has files, in a ``runtime``."""
    import verifiers.v1 as v1

    own = [
        getattr(task, hook)
        for hook in ("setup", "finalize")
        if getattr(type(task), hook) is not getattr(v1.Task, hook)
    ]
    judges = [judge.score for judge in task.plugged_judges()]
    functions: list[Callable[..., Any]] = [
        *own,
        *task.hooks("metric"),
        *task.hooks("reward"),
        *judges,
    ]
    return any("runtime" in inspect.signature(fn).parameters for fn in functions)
