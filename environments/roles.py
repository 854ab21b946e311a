"""The roles of an episode of several agents: what they see, call and earn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from vf.environments.environment import Environment, Observation
from vf.environments.players import ANSWER, PlayedBy, Player
from vf.runtime.errors import ConfigError
from vf.tools.episode import ToolSet
from vf.traces.task import Task
from vf.traces.tools import Tool
from vf.traces.trace import Trace

POLICY = "policy"  # who plays a role that nobody else does: the model that is trained or evaluated


@dataclass(frozen=True, slots=True)
class Role:
    """A part in an episode.

    Attributes:
        system_prompt: The beginning of its conversation, unless None.
        tools: What it can call, as an environment's tools are written.
        optional: Whether an episode may end before it has acted. Otherwise that is an error, where
            the role is trained.
    """

    system_prompt: str | None = None
    tools: Sequence[Callable[..., Any] | ToolSet | Tool] = ()
    optional: bool = False


@dataclass(slots=True)
class RoleStep:
    """What an environment of several agents answers.

    Attributes:
        observations: What roles see next, by name: text (a user message) or messages. A role may
            see something without acting next.
        acting: The roles that act next, at the same time; by default those that see something.
        rewards: By role. Over the episode those of a role add up to a number in [0, 1].
        terminated: The task has ended by its own rules.
        truncated: The episode was cut short from outside.
        info: Anything worth recording; merged into ``Trace.info``.
    """

    observations: Mapping[str, Observation] = field(default_factory=dict)
    acting: Sequence[str] | None = None
    rewards: Mapping[str, float] = field(default_factory=dict)
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def next(self) -> list[str]:
        """The roles that act next, each once."""
        return list(dict.fromkeys(self.observations if self.acting is None else self.acting))


def mean_role_reward(trace: Trace) -> float:
    """The mean reward of the trained roles; without any, of those that the policy played."""
    roles = trace.roles.values()
    counted = [r for r in roles if r.trained] or [r for r in roles if r.player == POLICY]
    return fmean(role.reward for role in counted or roles)


def check_one_reward(environment: Environment, tasks: Iterable[Task], peer: str) -> None:
    """Check that the reward of an episode says what the policy earned in it.

    For export to a trainer that gives an episode one reward. Where the policy plays both sides of a
    game, their mean is the same whatever it does.

    Args:
        environment: Any environment.
        tasks: Those that are exported.
        peer: The trainer, for the error.

    Raises:
        ConfigError: If the policy plays several roles, and the reward is their mean.
    """
    if getattr(environment.rubric, "outcome", None) is not mean_role_reward:
        return
    for task in tasks:
        episode: Any = environment.episode(0)  # of several agents, by that outcome
        roles = episode.trained_roles(task)
        if len(roles) > 1:
            raise ConfigError(
                f"{environment.id or type(environment).__name__}: the policy plays the roles "
                f"{', '.join(roles)} in task {task.id!r}, and {peer} trains an episode by one "
                "reward, here the mean of theirs: in a game of two, the same whoever wins. Let "
                "somebody else play all but one (`players`; of a bundled game `opponents`), train "
                "with vf-rl, or give the rubric an outcome that all share"
            )


def player_of(where: str, role: str, played_by: PlayedBy | str) -> Player | None:
    """Return who plays a role; None for the policy.

    Args:
        where: The environment, for the error.
        role: The role's name.
        played_by: The value of ``players`` for this role.

    Raises:
        ConfigError: If no player can be made of the value.
    """
    if isinstance(played_by, str):
        if played_by == POLICY:
            return None
        raise ConfigError(
            f"{where}: players.{role} = {played_by!r}: write 'policy', a table with 'model' and "
            "'base_url', a model, a list of lines, or a function of the messages"
        )
    return Player.of(played_by, f"players.{role}", ANSWER)
