"""Several agents in an episode: each role has a conversation, tools and rewards of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from vf.environments.contexts import only_grows
from vf.environments.environment import Environment, Observation
from vf.environments.players import ANSWER, PlayedBy, Player
from vf.rubrics.rubric import Rubric
from vf.runtime.calling import call
from vf.runtime.errors import ConfigError, did_you_mean
from vf.tools.episode import ToolSet
from vf.tools.tool_box import ToolBox
from vf.traces.messages import Message
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
    chosen = [each for each in roles if each.trained] or [e for e in roles if e.player == POLICY]
    return fmean(each.reward for each in chosen or roles)


def check_one_reward(environment: Environment, tasks: Iterable[Task], peer: str) -> None:
    """Check that the reward of an episode says what the policy earned in it.

    For export to a trainer that gives an episode one reward. Where the policy plays both sides of a
    game, their mean is the same whatever it does.

    Args:
        environment: Any environment.
        tasks: Those that are exported.
        peer: The trainer, for the error.

    Raises:
        ConfigError: The policy plays several roles, and the reward is their mean.
    """
    if not isinstance(environment, MultiAgentEnvironment):
        return
    if getattr(environment.rubric, "outcome", None) is not mean_role_reward:
        return
    for task in tasks:
        episode = environment.episode(0)
        assert isinstance(episode, MultiAgentEnvironment)
        roles = episode.trained_roles(task)
        if len(roles) > 1:
            raise ConfigError(
                f"{environment.id or type(environment).__name__}: the policy plays the roles "
                f"{', '.join(roles)} in task {task.id!r}, and {peer} trains an episode by one "
                "reward, here the mean of theirs: in a game of two, the same whoever wins. Let "
                "somebody else play all but one (`players`; of a bundled game `opponents`), train "
                "with vf-rl, or give the rubric an outcome that all share"
            )


class MultiAgentEnvironment(Environment):
    """An environment in which several agents act.

    ``reset(task)`` and ``step(replies)`` return a :class:`RoleStep`: what the roles see, who
    acts next, and what each has earned. ``replies`` holds the messages of those that acted, by
    role. Each role has a conversation of its own in the trace (``Trace.lineages``), and what it
    earned is in ``Trace.roles``.

    In training, a role's advantage is relative to the rewards of the same role in the group. The
    rubric's reward is what an evaluation reports; by default it is the mean reward of the trained
    roles.

    Attributes:
        roles: The roles by name.
        players: Who plays a role: ``"policy"``, which is the default, or whatever
            :data:`~vf.environments.players.PlayedBy` allows: a table of a model at an API or of a
            checkpoint, a model, a list of lines, or a function of the messages.
        trained: The roles whose tokens are trained; None for all that the policy plays.
        max_turns: Maximum steps of one episode. In each, one role acts or several at once.

    Example::

        class Agree(vf.MultiAgentEnvironment):
            roles = {"ann": vf.Role("You are Ann."), "bob": vf.Role("You are Bob.")}

            def tasks(self, split):
                rows = [{"prompt": f"{n}. Name a colour.", "answer": ""} for n in range(20)]
                return vf.tasks_from(rows, split)

            def reset(self, task):
                return vf.RoleStep({name: task.prompt for name in self.roles})

            def step(self, replies):
                same = float(replies["ann"].content == replies["bob"].content)
                return vf.RoleStep(rewards={"ann": same, "bob": same}, terminated=True)
    """

    roles: Mapping[str, Role] = {}
    players: Mapping[str, PlayedBy | str] = {}
    trained: Sequence[str] | None = None
    rubric = Rubric(outcome=mean_role_reward)
    expensive_reset = True  # what it returns is no prompt that could be measured

    _boxes: dict[str, ToolBox]

    def reset(self, task: Task) -> RoleStep | Awaitable[RoleStep]:  # type: ignore[override]
        """Start an episode: say what the roles see, and who acts first."""
        raise ConfigError(f"{type(self).__name__} does not define reset(self, task)")

    def step(  # type: ignore[override]
        self, replies: dict[str, Message]
    ) -> RoleStep | Awaitable[RoleStep]:
        """Answer those that acted.

        Args:
            replies: Their messages, by role.
        """
        raise ConfigError(f"{type(self).__name__} does not define step(self, replies)")

    def players_of(self, task: Task) -> Mapping[str, PlayedBy | str]:
        """Return who plays the roles in a task's episodes. By default :attr:`players`.

        The same for every rollout of a task: they are compared with each other. Called on the
        episode's copy, before ``reset``.
        """
        return self.players

    def trained_roles(self, task: Task) -> list[str]:
        """Return the roles that a task's episodes train."""
        players = self.players_of(task)
        own = [name for name in self.roles if players.get(name, POLICY) == POLICY]
        return own if self.trained is None else [name for name in own if name in self.trained]

    async def run_role_tools(self, role: str, reply: Message) -> list[Message]:
        """Run the tool calls of a role's reply concurrently, and return the results.

        Raises:
            ToolFailure: A tool failed. A wrong call is not a failure: the role receives an error.
        """
        box = self._boxes[role]
        return await box.run(reply.tool_calls, turn=self.turn, timeout=self.tool_timeout)

    async def check(self) -> None:
        """Check that everything that episodes need is there, and that every player can play.

        Raises:
            ConfigError: Something is missing or wrong; says how to fix it.
        """
        self.check_settings()
        for name, player in self.players.items():
            self.player(name, player)
        for name in self.roles:
            self.role_box(name, [])
        for service in self.services:
            await call(service.check)

    def player(self, role: str, played_by: PlayedBy | str) -> Player | None:
        """Return who plays a role; None for the policy.

        Raises:
            ConfigError: Nothing of the kind can play.
        """
        if isinstance(played_by, str):
            if played_by == POLICY:
                return None
            raise ConfigError(
                f"{self._where}: players.{role} = {played_by!r}: write 'policy', a table with "
                "'model' and 'base_url', a model, a list of lines, or a function of the messages"
            )
        return Player.of(played_by, f"players.{role}", ANSWER)

    def role_box(self, role: str, events: list[Any]) -> ToolBox:
        """Return a role's tools for this episode, which record their calls among ``events``.

        Raises:
            ConfigError: A tool cannot be used, or two have one name.
        """
        found: list[Any] = []
        for entry in self.roles[role].tools:
            found += entry.bind(self) if isinstance(entry, ToolSet) else [entry]
        return ToolBox([e if isinstance(e, Tool) else Tool.from_function(e) for e in found], events)

    def check_settings(self) -> None:
        """Check the limits, the roles and the rubric.

        Raises:
            ConfigError: One cannot be used; says what to write.
        """
        super().check_settings()
        only_grows(self.context, self._where, "the contexts of roles only grow")
        if not isinstance(self.roles, Mapping) or not self.roles:
            raise ConfigError(
                f"{self._where}: roles must be a dict with at least one role, got {self.roles!r}; "
                "write roles = {'buyer': vf.Role(...), ...}"
            )
        for name, role in self.roles.items():
            if not isinstance(role, Role):
                raise ConfigError(f"{self._where}: roles.{name} must be a vf.Role, got {role!r}")
        for setting in ("players", "trained"):
            if isinstance(names := getattr(self, setting) or (), str):
                raise ConfigError(
                    f"{self._where}: {setting} must be a list of roles, got {names!r}"
                )
            for name in names:
                self.check_role(name, setting)
        for name in self.trained or ():
            if self.players.get(name, POLICY) != POLICY:
                raise ConfigError(
                    f"{self._where}: trained names {name!r}, which players.{name} gives to "
                    "somebody else; only what the policy plays can be trained: leave out one"
                )
        if self.system_prompt is not None or self.tools or self._tool_methods:
            raise ConfigError(
                f"{self._where}: system_prompt and tools belong to a role here: write "
                "vf.Role(system_prompt=..., tools=[...])"
            )

    def check_role(self, name: str, setting: str) -> None:
        """Check that there is such a role.

        Raises:
            ConfigError: There is none; names the setting, and the nearest role.
        """
        if name not in self.roles:
            hint = did_you_mean(name, self.roles)
            raise ConfigError(
                f"{self._where}: {setting} names the role {name!r}, which is not in roles "
                f"({', '.join(self.roles)}){hint}"
            )
