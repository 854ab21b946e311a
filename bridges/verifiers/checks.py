"""What an environment of verifiers may need that cannot be given here, found when it is loaded."""

from __future__ import annotations

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
    """Raise that an environment cannot be used here.

    Raises:
        ConfigError: Always.
    """
    raise ConfigError(
        f"{name}: it needs {needs}, which cannot be given here"
        f"{'; ' + instead if instead else ''}. It can be run with verifiers itself"
    )


def leaves(theirs: Any) -> list[Any]:
    """Return the environments of a group, or the one that it is."""
    inner = getattr(theirs, "envs", None)
    if inner is None:
        return [theirs]
    return [leaf for each in inner for leaf in leaves(each)]


def check_v0(name: str, theirs: Any) -> None:
    """See that a v0 environment needs nothing that cannot be given here.

    Raises:
        ConfigError: It does; says what.
    """
    import verifiers.legacy as verifiers

    if not isinstance(theirs, verifiers.Environment):
        raise ConfigError(
            f"{name}: load_environment returned {type(theirs).__name__}, which is not a "
            "verifiers.Environment"
        )
    for each in leaves(theirs):
        cls = type(each)
        for base in cls.__mro__:
            if base.__name__ in _NEEDS and base.__module__.startswith("verifiers."):
                refuse(name, f"{_NEEDS[base.__name__]} ({cls.__name__})")
        if not isinstance(each, verifiers.MultiTurnEnv):
            refuse(name, f"a rollout loop of its own ({cls.__name__} is no MultiTurnEnv)")
        for method in _REWRITING:
            if not _is_theirs(cls, method):
                refuse(name, f"to shape each request itself ({cls.__name__}.{method})")
        if each.message_type != "chat":
            refuse(name, "plain completions", "only chats are supported")
        if not each.score_rollouts:
            refuse(name, "its rewards from elsewhere (score_rollouts is False)")
        if getattr(each, "provides_advantages", False):
            refuse(name, "its own advantages (vf-rl computes them from rewards)")
        if each.tool_defs != leaves(theirs)[0].tool_defs:
            refuse(name, "other tools in each of its environments", "load them one by one")


def is_rebuilt_from_messages(theirs: Any) -> bool:
    """Return whether an environment's state holds nothing but what was said.

    Then a saved trace can be scored as the live rollout was.
    """
    import verifiers.legacy as verifiers

    plain = {"multiturn_env", "singleturn_env", "tool_env"}
    methods = ("setup_state", "env_response", "render_completion", "add_trajectory_step")
    return not hasattr(theirs, "envs") and all(
        not isinstance(each, verifiers.StatefulToolEnv)
        and len(each._cleanup_handlers) == 1  # its own, which renders the completion
        and all(
            getattr(type(each), method).__module__.rpartition(".")[2] in plain
            and _is_theirs(type(each), method)
            for method in methods
        )
        for each in leaves(theirs)
    )


def _is_theirs(cls: type, method: str) -> bool:
    module: str = getattr(cls, method).__module__
    return module.startswith("verifiers.")
