"""What a v1 taskset may need that cannot be given here, found when it is loaded."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from vf.bridges.verifiers.checks import refuse
from vf.bridges.verifiers.v1_tools import check_placement


def check_package(name: str, environment_id: str) -> None:
    """See that a taskset's package brings no agents or programs of its own.

    Raises:
        ConfigError: It does.
    """
    from verifiers.v1.envs.single_agent import SingleAgentEnv
    from verifiers.v1.utils.loaders import default_harness_id, environment_class

    found = environment_class(environment_id)
    if found is not SingleAgentEnv:
        refuse(name, f"its own interplay of agents ({found.__name__})")
    if default_harness_id(environment_id) == environment_id:
        refuse(name, "its own harness, a program that the model acts through")


def check_v1(name: str, taskset: Any, task: Any) -> None:
    """See that a taskset, whose first task is given, needs nothing that cannot be given here.

    Raises:
        ConfigError: It does; says what.
    """
    cls = type(task).__name__
    if task.NEEDS_CONTAINER:
        refuse(name, f"a container ({cls}.NEEDS_CONTAINER)")
    for hook in ("setup", "finalize"):
        if _overrides(task, hook) and _needs_runtime(getattr(task, hook)):
            refuse(name, f"a runtime for {cls}.{hook}")
    judges = task.plugged_judges()
    for fn in (*task.hooks("metric"), *task.hooks("reward"), *(each.score for each in judges)):
        if _needs_runtime(fn):
            refuse(name, f"a runtime for {getattr(fn, '__qualname__', fn)}")
    _check_hooks(name, task)
    for toolset in (
        *type(task).toolsets(task.config),
        *type(taskset).toolsets(taskset.config),
    ):
        check_placement(name, toolset, refuse)
    check_data(name, task.data)


def check_data(name: str, data: Any) -> None:
    """See that a task's data asks for nothing that cannot be given here.

    Raises:
        ConfigError: It does.
    """
    said = f"{name}: task {data.idx if data.name is None else data.name!r}"
    if data.prompt is None:
        refuse(said, "a user to open the conversation (it has no prompt)")
    for field, what in (
        ("image", "a container with the image"),
        ("artifacts", "a runtime for its artifacts"),
        ("skills", "a harness with skills"),
        ("network_block", "a runtime with a network policy"),
    ):
        if getattr(data, field, None):
            refuse(said, f"{what} {getattr(data, field)!r}")
    if "*" not in data.network_allow:
        refuse(said, f"a runtime with a network policy {data.network_allow!r}")


def _check_hooks(name: str, task: Any) -> None:
    import verifiers.v1 as v1
    from verifiers.v1.session import hook_boundary
    from verifiers.v1.utils.decorators import discover_decorated

    for fn in discover_decorated(task, "intercept"):
        refuse(name, f"to intercept the model's requests ({fn.__qualname__})")
    for fn in task.hooks("stop"):
        if hook_boundary(fn, allow_trace=True) is not v1.Trace:
            refuse(name, f"to look into the model's requests ({fn.__name__}, a @vf.stop)")


def _overrides(task: Any, hook: str) -> bool:
    import verifiers.v1 as v1

    return getattr(type(task), hook) is not getattr(v1.Task, hook)


def _needs_runtime(fn: Callable[..., Any]) -> bool:
    parameter = inspect.signature(fn).parameters.get("runtime")
    return parameter is not None and parameter.default is parameter.empty
