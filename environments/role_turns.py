"""An episode of several agents: those whose turn it is answer, and the environment steps."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from vf.environments.dialogue import respond
from vf.environments.episode import Episode
from vf.environments.players import Player
from vf.environments.roles import POLICY, MultiAgentEnvironment, RoleStep
from vf.environments.turns import as_observed, ask, check_info
from vf.inference.model import Conversation, LimitReached, Reply
from vf.runtime.errors import ConfigError, EnvironmentFailure
from vf.runtime.seeding import derive_seed
from vf.traces.messages import Message
from vf.traces.roles import RoleRecord
from vf.traces.trace import NOT_SAMPLED, Lineage, StopReason, Turn


async def take_role_turns(episode: Episode, environment: MultiAgentEnvironment) -> StopReason:
    """Play an episode of several agents, and return why it ended.

    Raises:
        InfrastructureError: A part of it failed.
        ConfigError: The environment, its roles or their tools are set up wrongly.
    """
    turns = _RoleTurns(episode, environment)
    try:
        return await turns.run()
    finally:
        turns.record()


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
            box = environment._boxes[name] = environment.role_box(name, self.trace.tool_events)
            player = environment.player(name, players.get(name, POLICY))
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
            LimitReached: One has no room left. What the others said is recorded.
        """
        budget = self.episode.sampling.max_tokens
        policies = [role for role in acting if self.seats[role].player is None]
        if policies and self.environment.max_tokens is not None:
            left = self.environment.max_tokens - self.trace.completion_tokens
            budget = min(budget, left // len(policies))
        if budget < 1:
            raise LimitReached(StopReason.MAX_TOKENS)
        first = len(self.trace.turns)
        numbers = {role: first + place for place, role in enumerate(policies)}
        with self.episode.phase("model"):
            works = [
                asyncio.create_task(self._answer(role, numbers.get(role), budget))
                for role in acting
            ]
            try:
                found = await asyncio.gather(*works)
            finally:
                for work in works:
                    work.cancel()
                await asyncio.gather(*works, return_exceptions=True)
        reached: LimitReached | None = None
        replies: dict[str, Message] = {}
        for role, (reply, seconds) in zip(acting, found, strict=True):
            if isinstance(reply, LimitReached):
                reached = reached or reply
            else:
                replies[role] = self._said(role, numbers.get(role), reply, seconds)
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

    def _said(self, role: str, number: int | None, reply: Reply, seconds: float) -> Message:
        """Record what a role said."""
        seat, trace = self.seats[role], self.trace
        record, conversation = seat.record, seat.conversation
        record.answers += 1
        record.prompt_tokens += reply.prompt_tokens
        record.completion_tokens += reply.completion_tokens
        if number is not None:
            turn = len(trace.turns)
            if turn != number and conversation.branches:  # one before it had no room to answer
                turns = conversation.branches[-1].turn_index
                turns[:] = [turn if each == number else each for each in turns]
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
