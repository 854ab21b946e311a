"""Episodes within an episode: the same model plays them, and the same trace records them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from vf.environments.environment import Environment
from vf.environments.episode import Activity, Episode
from vf.runtime.errors import ConfigError
from vf.runtime.own_deadline import clocked
from vf.runtime.seeding import derive_seed
from vf.tools.tool_box import off_the_clock
from vf.traces.joining import join
from vf.traces.task import Task
from vf.traces.trace import Fork, Lineage, StopReason, Trace

SHARE = 0.5  # of the rollout's timeout, for all of them together: who is slow is scored, too


@dataclass(slots=True)
class _Nested:
    """One that was begun, and is not in the episode's trace yet.

    Attributes:
        name: Whose it is.
        trace: Its record.
        tokens: How many it may still sample or has sampled.
    """

    name: str
    trace: Trace
    tokens: int


class NestedEpisodes:
    """Plays further episodes while one is played, each with a conversation of its own.

    What they take counts in the whole: their tokens in the environment's ``max_tokens``, and the
    time of their tools in its ``timeout``, of which they get half.

    They may run at the same time. Their seeds, and their places in the trace, follow the order in
    which they were begun, so nothing depends on which of them ends first.

    Args:
        episode: Within which they are played.
        lineages: Its conversations.
        play: Plays an episode, and returns why it ended.
    """

    def __init__(
        self,
        episode: Episode,
        lineages: list[Lineage],
        play: Callable[[Episode], Awaitable[StopReason]],
    ) -> None:
        self._episode, self._lineages, self._play = episode, lineages, play
        self._begun = 0
        self._open: list[_Nested] = []
        self._spent = 0.0  # seconds of their tools

    async def play(
        self, environment: Environment, task: Task, name: str, timeout: float
    ) -> tuple[StopReason, Trace]:
        """Play an episode, with what the one around it holds, such as its sandbox.

        The clocks of the tool call and of the rollout around it go by its own.

        Args:
            environment: The definition. Its ``context``, ``tool_timeout`` and ``timeout`` are
                replaced by those of the episode around it.
            task: Its task.
            name: The name of the agent that plays it.
            timeout: Seconds that its tools may take. The model's answers do not count.

        Returns:
            Why it ended (``max_seconds``: its time was over), and its record.

        Raises:
            InfrastructureError: If the model or a tool failed.
            ConfigError: If it is set up wrongly, or the model has a single conversation.
        """
        around, whole = self._episode.environment, self._episode.trace
        if getattr(self._episode.model, "one_conversation", False):
            raise ConfigError(
                f"environment {whole.environment!r}: {name!r} has a conversation of its own, and "
                "whoever answers here has only one; play the environment with vf.rollout, "
                "vf.evaluate or a training run, or take it out of tools"
            )
        seed = derive_seed(self._episode.seed, "nested", self._begun)
        self._begun += 1
        own = environment.episode(derive_seed(seed, "environment"))
        own.id, own.context = f"{whole.environment}/{name}", around.context
        own.timeout, own.tool_timeout = around.timeout, around.tool_timeout
        own._held, own.timing = around._held, around.timing
        own.task_sandbox, own.artifacts = around.task_sandbox, around.artifacts
        trace = Trace(environment=own.id, task=task, seed=seed)
        seconds = min(timeout, SHARE * around.timeout - self._spent)
        if around.max_tokens is not None:
            taken = whole.completion_tokens + sum(nested.tokens for nested in self._open)
            own.max_tokens = min(own.max_tokens or around.max_tokens, around.max_tokens - taken)
        if own.max_tokens is not None and own.max_tokens < 1:
            return StopReason.MAX_TOKENS, trace
        if seconds <= 0:
            return StopReason.MAX_SECONDS, trace
        doing = self._episode.activity
        activity = Activity(task, lambda: doing.enter(activity.doing))
        nested = replace(
            self._episode,
            environment=own,
            task=task,
            seed=seed,
            trace=trace,
            activity=activity,
            first_turn=len(whole.turns) + sum(len(nested.trace.turns) for nested in self._open),
            fork=Fork(0, f"{name} was called", "conversation"),
        )
        entry = _Nested(name, trace, own.max_tokens or 0)
        self._open.append(entry)
        try:
            return await self._timed(nested, seconds), trace
        finally:
            entry.tokens = trace.completion_tokens

    async def _timed(self, nested: Episode, seconds: float) -> StopReason:
        timing, started = self._episode.trace.timing, time.perf_counter()
        loop = asyncio.get_running_loop()
        with off_the_clock():
            try:
                async with clocked(seconds) as deadline:
                    try:
                        return await self._play(nested)
                    finally:
                        until = deadline.when()
                        self._spent += seconds - ((until or loop.time()) - loop.time())
            except TimeoutError:
                if not deadline.expired():
                    raise
                return StopReason.MAX_SECONDS
            finally:
                spent = time.perf_counter() - started
                timing["sub_agents"] = timing.get("sub_agents", 0.0) + spent

    def join(self) -> None:
        """Write those that were begun into the trace, behind what it holds."""
        begun, self._open = self._open, []
        for nested in begun:
            join(self._episode.trace, self._lineages, nested.trace, nested.name)
