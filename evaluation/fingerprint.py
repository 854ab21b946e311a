"""What a result depends on apart from settings: the environment's code, prompt, tools, rubric.

It is written into the results folder, and compared before an evaluation is resumed: rollouts of
two versions of an environment never end up in one mean.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from vf.environments.agent import AgentEnvironment
from vf.environments.environment import Environment
from vf.environments.registry import installed_environments
from vf.runtime.describe import Description, is_secret

FORMAT = 2  # of the description; one of another cannot be compared
LIMITS = ("max_turns", "max_tokens", "timeout", "tool_timeout")
# Described by their values, not by the code that sets them. What `tasks` gives has its own digest,
# and `oracle` and `hackers` have no part in an evaluation.
BY_VALUE = ("rubric", "system_prompt", "tools", *LIMITS, "id", "_tool_methods")
NO_PART = ("tasks", "oracle", "hackers")
# The packages behind the bridges, by the bridge's module.
BRIDGED = {
    "vf.bridges.gym.from_pettingzoo": "pettingzoo",
    "vf.bridges.gym": "gymnasium",
    "vf.bridges.openenv": "openenv-core",
    "vf.bridges.reasoning_gym": "reasoning-gym",
    "vf.bridges.textarena": "textarena",
    "vf.bridges.verifiers": "verifiers",
}
# Objects of the library's environments, such as a world, follow from arguments and version.
_FOLLOWS = "vf.environments."
_OURS = ("vf.rubrics.", "vf.environments.bundled.")  # of vf, the code that asks and scores


def describe_environment(environment: Environment) -> dict[str, Any]:
    """Return what the results in an environment depend on, as JSON.

    Tools that only ``reset`` gives are known by its code.

    Args:
        environment: The definition, with the limits of the evaluation.
    """
    tools = environment.episode(0).toolbox.schemas()
    follows = _follower(environment.__module__)

    def description() -> Description:
        return Description(follows, _opens(follows), Environment, (*BY_VALUE, *NO_PART))

    code, rubric = description(), description()
    parts = {
        name: rubric.of(value)
        for name, value in getattr(environment.rubric, "__dict__", {}).items()
        if not name.startswith("_")
    }
    attributes = {
        name: code.of(value)
        for name, value in sorted(vars(environment).items())
        if not (name.startswith("_") or name in BY_VALUE or is_secret(name, value))
        and not type(value).__module__.startswith(_FOLLOWS)
    }
    if isinstance(environment, AgentEnvironment):
        attributes["agent"] = code.of(environment.agent.measured())
    return {
        "class": code.of(type(environment)),
        "attributes": attributes,
        "system_prompt": environment.system_prompt,
        "limits": {name: getattr(environment, name) for name in LIMITS},
        "tools": {tool["function"]["name"]: tool["function"] for tool in tools},
        "tool_settings": code.of(list(environment.tools)),
        "source": code.code,
        "rubric": {**parts, "type": rubric.of(type(environment.rubric)), "source": rubric.code},
        "packages": dict(_versions(environment)),
    }


def without_rubrics(measured: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is measured except for the rubrics: if this is the same, a rescore is enough."""
    environments = {
        name: {key: value for key, value in described.items() if key != "rubric"}
        for name, described in measured.get("environments", {}).items()
    }
    return {**measured, "environments": environments}


def _follower(module: str) -> Any:
    """Return which modules' code is looked at: the environment's package, and local files."""
    package = module.partition(".")[0]

    def follows(name: str) -> bool:
        top = name.partition(".")[0]
        if top == "vf":
            return name.startswith(_OURS)
        if top == package:
            return True
        if top in sys.stdlib_module_names:
            return name == "__main__"
        paths = _locations(top)
        return any(not {"site-packages", "dist-packages"} & {*Path(path).parts} for path in paths)

    return follows


def _locations(module: str) -> list[str]:
    """Return where a module lies: its file, or the folders of a package without a file."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None:  # made while the program runs
        return [file] if (file := getattr(sys.modules.get(module), "__file__", None)) else []
    if spec.origin and spec.has_location:
        return [spec.origin]
    return [*(spec.submodule_search_locations or ())]


def _opens(follows: Any) -> Any:
    return lambda name: name.partition(".")[0] == "vf" or follows(name)


def _versions(environment: Environment) -> Iterator[tuple[str, str]]:
    """Yield the packages that the environment comes from, with their versions."""
    module = environment.__module__
    bridge = ".".join(module.split(".")[:3])
    name, _, first = environment.id.partition(":")
    names = ["vf-rl", module.partition(".")[0], BRIDGED.get(bridge, ""), first]
    for point in installed_environments().select(name=name):
        names.append(point.dist.name if point.dist else "")
    for package in dict.fromkeys(filter(None, names)):
        try:
            yield package, version(package)
        except (PackageNotFoundError, ValueError):
            continue
