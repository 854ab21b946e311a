"""Environments of several agents: those whose turn it is answer, and the environment steps."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from vf.environments.contexts import only_grows
from vf.environments.dialogue import respond
from vf.environments.environment import Environment
from vf.environments.episode import Episode
from vf.environments.players import PlayedBy, Player
from vf.environments.roles import POLICY, Role, RoleStep, mean_role_reward, player_of
from vf.environments.turns import as_observed, ask, check_info
from vf.inference.model import Conversation, LimitReached, Reply
from vf.rubrics.rubric import Rubric
from vf.runtime.calling import call
from vf.runtime.errors import ConfigError, EnvironmentFailure, did_you_mean
from vf.runtime.seeding import derive_seed
from vf.tools.episode import bound
from vf.tools.tool_box import ToolBox
from vf.traces.messages import Message
from vf.traces.roles import RoleRecord
from vf.traces.task import Task
from vf.traces.trace import NOT_SAMPLED, Lineage, StopReason, Turn


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

    async def play_episode(self, episode: Episode) -> StopReason:
        """Play an episode, and return why it ended.

        Raises:
            InfrastructureError: If a part of it failed.
            ConfigError: If the environment, its roles or their tools are set up wrongly.
        """
        turns = _RoleTurns(episode, self)
        try:
            return await turns.run()
        finally:
            turns.record()

    async def run_role_tools(self, role: str, reply: Message) -> list[Message]:
        """Run the tool calls of a role's reply concurrently, and return the results.

        Raises:
            ToolFailure: If a tool failed. A wrong call is not one: the role receives an error.
        """
        box = self._boxes[role]
        return await box.run(reply.tool_calls, turn=self.turn, timeout=self.tool_timeout)

    async def check(self) -> None:
        """Check that everything that episodes need is there, and that every player can play.

        Raises:
            ConfigError: If something is missing or wrong; says how to fix it.
        """
        self.check_settings()
        for name, player in self.players.items():
            player_of(self._where, name, player)
        for role in self.roles.values():
            ToolBox(bound(role.tools, self))
        for service in self.services:
            await call(service.check)

    def check_settings(self) -> None:
        """Check the limits, the roles and the rubric.

        Raises:
            ConfigError: If one of them is invalid; the message says what to write.
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
            ConfigError: If there is none; names the setting, and the nearest role.
        """
        if name not in self.roles:
            hint = did_you_mean(name, self.roles)
            raise ConfigError(
                f"{self._where}: {setting} names the role {name!r}, which is not in roles "
                f"({', '.join(self.roles)}){hint}"
            )


@dataclass(slots=True)
class _Seat:
    """A role in this episode, and who plays it: the policy if ``player`` is None."""

    player: Player | None
    record: RoleRecord
    conversation: Conversation
    lineage: Lineage = field(default_factory=Lineage)


class _RoleTurns:
    def __init__(self, episode: Episode, environment: MultiAgentEnvironment) -> None:
        self.episode, self.environment, self.trace = episode, environment, episode.trace
        players = environment.players_of(episode.task)
        for name in players:
            environment.check_role(name, "players_of(task)")
        trained = environment.trained_roles(episode.task)
        environment._boxes, self.seats = {}, dict[str, _Seat]()
        for name, role in environment.roles.items():
            box = ToolBox(bound(role.tools, environment), self.trace.tool_events)
            environment._boxes[name] = box
            player = player_of(environment._where, name, players.get(name, POLICY))
            if player is not None and isinstance(players[name], Mapping):
                # Opened here, from a table: it is the episode's, and closed with it.
                environment.hold(("player", name), partial(_same, player.model))
            record = RoleRecord(player.name if player else POLICY, name in trained)
            conversation = Conversation(tools=box.schemas())
            if role.system_prompt is not None:
                conversation.messages.append(Message("system", role.system_prompt))
            lineage = Lineage(conversation.messages, tools=conversation.tools, role=name)
            self.seats[name] = _Seat(player, record, conversation, lineage)
            self.trace.roles[name] = record
        self.trace.lineages = [seat.lineage for seat in self.seats.values()]
        self.last = self.seats[next(iter(self.seats))]

    async def run(self) -> StopReason:
        environment = self.environment
        with self.episode.phase("reset"):
            step = self._taken("reset", await ask(environment, "reset", self.episode.task))
            await environment.settle()
        for count in range(environment.max_turns):
            acting = step.next
            if not acting:
                raise EnvironmentFailure(
                    "step neither ended the episode nor said who acts next; name a role in "
                    "observations or acting, or return terminated=True"
                )
            environment.turn = count
            try:
                replies = await self._answers(acting)
            except LimitReached as limit:
                return limit.reason
            with self.episode.phase("step"):
                step = self._taken("step", await ask(environment, "step", replies))
            if step.terminated:
                self._check_acted()
                return StopReason.TERMINATED
            if step.truncated:
                return StopReason.TRUNCATED
        return StopReason.MAX_TURNS

    def _taken(self, name: str, step: object) -> RoleStep:
        """Tell the roles what a step says, note their rewards, and return it."""
        if not isinstance(step, RoleStep):
            raise EnvironmentFailure(
                f"{name} returned {type(step).__name__}, not vf.RoleStep; write return "
                "vf.RoleStep({role: text}, rewards={role: ...}, terminated=...)"
            )
        for setting in ("observations", "acting", "rewards"):
            for role in getattr(step, setting) or ():
                self.environment.check_role(role, f"the {setting} of {name}")
        for role, reward in step.rewards.items():
            if not isinstance(reward, int | float) or not math.isfinite(reward):
                raise EnvironmentFailure(f"{name} returned a reward of {reward!r} for {role!r}")
            record = self.seats[role].record
            record.reward += float(reward)
            if not -1e-9 <= record.reward <= 1 + 1e-9:
                raise EnvironmentFailure(
                    f"the rewards of role {role!r} add up to {record.reward:g}, outside of [0, 1]; "
                    "scale them: a game of -1, 0 and 1 gives (r + 1) / 2 at its end"
                )
        self.trace.info.update(check_info(step.info))
        for role, observation in step.observations.items():
            self.seats[role].conversation.messages += as_observed(name, observation)
        return step

    async def _answers(self, acting: list[str]) -> dict[str, Message]:
        """Have roles answer at the same time, and return their messages.

        Raises:
            LimitReached: If one has no room left. The others' messages are recorded.
        """
        budget = self.episode.sampling.max_tokens
        policies = [role for role in acting if self.seats[role].player is None]
        if policies and self.environment.max_tokens is not None:
            left = self.environment.max_tokens - self.trace.completion_tokens
            budget = min(budget, left // len(policies))
        if budget < 1:
            raise LimitReached(StopReason.MAX_TOKENS)
        first = len(self.trace.turns)
        numbers = {role: first + index for index, role in enumerate(policies)}
        with self.episode.phase("model"):
            works = [
                asyncio.create_task(self._answer(role, numbers.get(role), budget))
                for role in acting
            ]
            try:
                answers = await asyncio.gather(*works)
            finally:
                for work in works:
                    work.cancel()
                await asyncio.gather(*works, return_exceptions=True)
        reached: LimitReached | None = None
        replies: dict[str, Message] = {}
        for role, (reply, seconds) in zip(acting, answers, strict=True):
            if isinstance(reply, LimitReached):
                reached = reached or reply
            else:
                replies[role] = self._record_answer(role, numbers.get(role), reply, seconds)
        if reached is not None:
            raise reached
        return replies

    async def _answer(
        self, role: str, number: int | None, budget: int
    ) -> tuple[Reply | LimitReached, float]:
        seat, started = self.seats[role], time.perf_counter()
        conversation, player = seat.conversation, seat.player
        if not conversation.messages or conversation.messages[-1].role == "assistant":
            raise EnvironmentFailure(
                f"role {role!r} is to act, but has nothing new to answer; name it in observations"
            )
        if not seat.record.answers:
            seat.lineage.prompt_messages = len(conversation.messages)
        seed = derive_seed(self.episode.seed, "turn", role, seat.record.answers)
        if player is None:
            model, sampling = self.episode.model, self.episode.sampling
            sampling = sampling.with_(max_tokens=budget, seed=seed)
        else:
            model, sampling = player.model, player.sampling.with_(seed=seed)
        # The policy's answers count by the trace's turns, which are those of all its roles.
        conversation.turn = seat.record.answers if number is None else number
        try:
            reply: Reply | LimitReached = await respond(model, conversation, sampling)
        except LimitReached as limit:
            reply = limit
        return reply, time.perf_counter() - started

    def _record_answer(
        self, role: str, number: int | None, reply: Reply, seconds: float
    ) -> Message:
        """Record a role's answer, and return its message."""
        seat, trace = self.seats[role], self.trace
        record, conversation = seat.record, seat.conversation
        record.answers += 1
        record.prompt_tokens += reply.prompt_tokens
        record.completion_tokens += reply.completion_tokens
        if number is not None:
            turn = len(trace.turns)
            if turn != number and conversation.branches:  # one before it had no room to answer
                turns = conversation.branches[-1].turn_index
                turns[:] = [turn if index == number else index for index in turns]
            seat.lineage.turns.append(turn)
            seat.lineage.answers.append(len(conversation.messages))
            trace.turns.append(
                Turn(reply.prompt_tokens, reply.completion_tokens, reply.finish_reason, seconds)
            )
            self.episode.activity.turn = len(trace.turns)
            self.last = seat
        conversation.messages.append(reply.message)
        return reply.message

    def _check_acted(self) -> None:
        """Raise ConfigError if a trained role has never acted, and should have."""
        for name, seat in self.seats.items():
            idle = seat.record.trained and not seat.record.answers
            if idle and not self.environment.roles[name].optional:
                raise ConfigError(
                    f"environment {self.trace.environment!r}: the role {name!r} is trained, but "
                    f"never acted in the episode of task {self.episode.task.id!r}; name it in "
                    "acting, take it out of trained, or write vf.Role(optional=True)"
                )

    def record(self) -> None:
        """Write the conversations into the trace; only those of trained roles carry loss."""
        trace = self.trace
        for seat in self.seats.values():
            branches = seat.conversation.branches
            seat.lineage.branches = [
                *range(len(trace.branches), len(trace.branches) + len(branches))
            ]
            if not seat.record.answers:
                seat.lineage.prompt_messages = len(seat.lineage.messages)
            for branch in branches if not seat.record.trained else ():
                branch.loss_mask = [0] * len(branch)
                branch.logprobs = [0.0] * len(branch)
                branch.weight_version = [NOT_SAMPLED] * len(branch)
                branch.supports = []
            trace.branches += branches
            trace.forks += seat.conversation.forks
        trace.forks.sort(key=lambda fork: fork.turn)
        last = self.last.lineage
        trace.messages, trace.tools = last.messages, last.tools
        trace.prompt_messages = last.prompt_messages


def _same(model: Any) -> Any:
    return model
