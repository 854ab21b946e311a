"""The one rollout loop: a model acts in an environment until it ends, and is scored."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Protocol, runtime_checkable

from vf.environments.environment import Environment
from vf.environments.episode import Activity, Episode
from vf.environments.sandboxes import backend_of, spec_of
from vf.environments.turns import ask, take_turns
from vf.inference.model import Model, Sampling, own_sampling
from vf.runtime.errors import (
    EnvironmentFailure,
    HostLost,
    InfrastructureError,
    ModelError,
    RubricError,
    ServerDown,
)
from vf.runtime.own_deadline import clocked
from vf.runtime.seeding import derive_seed
from vf.traces.task import Task
from vf.traces.trace import Failure, StopReason, Trace

log = logging.getLogger(__name__)

CLOSE_TIMEOUT = 30.0  # seconds that an environment gets to close, after which it is left behind
END_TIMEOUT = CLOSE_TIMEOUT  # seconds for what is cancelled to end, before it is left behind
LOOK_SECONDS = 5.0  # between two looks whether that is so
HOST_LOSSES = 3  # of one rollout, before a further one counts as its failure
_BOUNDARY: dict[str, type[InfrastructureError]] = {"model": ModelError, "score": RubricError}


@runtime_checkable
class OwnPlay(Protocol):
    """An environment that is played in another way than in turns of one conversation.

    With an attribute ``own_clock = True``, ``play_episode`` keeps the environment's timeout itself,
    and the runner's clock covers scoring alone.
    """

    async def play_episode(self, episode: Episode) -> StopReason:
        """Play an episode on this environment, which is a rollout's own copy.

        Returns:
            Why the episode ended.
        """
        ...


async def rollout(
    environment: Environment,
    task: Task,
    model: Model,
    *,
    sampling: Sampling | None = None,
    seed: int = 0,
    activity: Activity | None = None,
) -> Trace:
    """Run one episode and score it.

    Any failure (model, tool, environment, rubric, a deadline) ends only this rollout, with
    ``Trace.error`` set and no score.

    Args:
        environment: The definition; the rollout works on its own copy.
        task: The problem.
        model: The model that answers.
        sampling: Settings of each turn; by default the model's own. Its ``seed`` is
            replaced by one per turn.
        seed: Seed of the episode: the environment's ``rng`` and every turn derive from it.
        activity: Kept up to date with what the rollout does.

    Returns:
        The trace, also where something failed.

    Raises:
        ConfigError: If the environment or its tools are set up wrongly.
        asyncio.CancelledError: If the caller gave up; the environment is closed first.
    """
    own = environment.episode(derive_seed(seed, "environment"))
    own.task_sandbox = spec_of(environment, task)
    own.timeout = own.timeout_of(task)
    trace = Trace(environment=own.id or type(own).__name__, task=task, seed=seed)
    trace.timing, trace.info = own.timing, own.trace_info
    if backend := backend_of(own):
        trace.info["sandbox"] = backend
    episode = Episode(
        environment=own,
        task=task,
        model=model,
        sampling=sampling or own_sampling(model),
        seed=seed,
        trace=trace,
        activity=activity or Activity(task),
    )
    return await _Rollout(episode).run_in_time()


class Repeats:
    """Decides whether a rollout is repeated from its start: if the machine under it was lost.

    The seed is the same each time, so nothing is gained by a loss. A sandbox's host might be lost
    through what runs in it, so after ``HOST_LOSSES`` repetitions the failure stands.

    Args:
        waits: Whether the caller waits for a server before each time. Otherwise an outage of the
            server is a failure.
    """

    def __init__(self, *, waits: bool) -> None:
        self._waits = waits
        self._host_losses = 0

    def repeat(self, trace: Trace) -> bool:
        """Return whether the rollout that ended in this trace is repeated."""
        if trace.error is None:
            return False
        if trace.error.boundary == HostLost.boundary and self._host_losses < HOST_LOSSES:
            self._host_losses += 1
        elif trace.error.boundary != ServerDown.boundary or not self._waits:
            return False
        log.warning("the rollout of %s is repeated: %s", trace.task.id, trace.error.message)
        return True


async def repeat_lost(
    run: Callable[[], Awaitable[Trace]], ready: Callable[[], Awaitable[None]] | None = None
) -> Trace:
    """Run a rollout, and again as often as :class:`Repeats` has it.

    Args:
        run: Runs it once.
        ready: Waits before each time until the model's server can be asked, and raises where none
            comes back. Without it an outage of the server is a failure.
    """
    repeats = Repeats(waits=ready is not None)
    while True:
        if ready is not None:
            await ready()
        trace = await run()
        if not repeats.repeat(trace):
            return trace


class _Rollout:
    """One rollout, from start to end."""

    def __init__(self, episode: Episode) -> None:
        self.episode = episode
        self.environment = episode.environment
        self.trace = episode.trace
        self.deadline: asyncio.Timeout | None = None

    async def run_in_time(self) -> Trace:
        """Run it; if it does not end when it is to, leave it behind.

        A deadline cancels what it waits for, and a function of a user may catch that and continue.
        """
        work = asyncio.create_task(self.run())
        work.add_done_callback(lambda done: done.cancelled() or done.exception())  # it is seen
        loop, late = asyncio.get_running_loop(), 0.0
        try:
            while not work.done():
                await asyncio.wait([work], timeout=LOOK_SECONDS)
                if self.deadline is None or not self.deadline.expired():
                    late = 0.0
                elif not late:
                    late = loop.time()
                elif loop.time() - late > END_TIMEOUT:
                    break
            if work.done():
                return work.result()
        except asyncio.CancelledError:
            if not work.done():
                work.cancel()
                await asyncio.wait([work], timeout=2 * CLOSE_TIMEOUT + END_TIMEOUT)
            raise
        doing = self.episode.activity.doing
        why = f"{doing} did not end when its time was over: does it catch asyncio.CancelledError?"
        self._fail(EnvironmentFailure(f"the rollout is left behind, for {why}"))
        return self.trace.copy()  # what was left behind cannot change it

    async def run(self) -> Trace:
        trace, started = self.trace, time.perf_counter()
        try:
            await self._play()
        except InfrastructureError as error:
            self._fail(error)
        finally:
            try:
                await self._end("close")
            finally:
                await self._end("release")
            trace.timing["total"] = time.perf_counter() - started
        return trace

    async def _play(self) -> None:
        trace, environment = self.trace, self.environment
        if environment.fetch_images:
            from vf.environments.fetching import with_fetched_images

            with self.episode.phase("fetch"):
                trace.task = await with_fetched_images(self.episode.task)
            self.episode = replace(self.episode, task=trace.task)
        play = environment.play_episode if isinstance(environment, OwnPlay) else take_turns
        if getattr(environment, "own_clock", False):
            trace.stop_reason = await play(self.episode)
        async with self._in_time():
            if trace.stop_reason is None:
                trace.stop_reason = await play(self.episode)
            with self.episode.phase("score"):
                trace.score = await environment.rubric.score(trace)

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        """Keep the environment's timeout, and name what it ran out in."""
        seconds = self.environment.timeout
        try:
            async with clocked(seconds) as deadline:
                self.deadline = deadline
                yield
        except TimeoutError as error:
            if not deadline.expired():
                raise
            doing = self.episode.activity.doing
            raise _BOUNDARY.get(doing, EnvironmentFailure)(
                f"the rollout took longer than its {seconds:g} s, and was waiting for {doing}"
            ) from error

    async def _end(self, name: str) -> None:
        self.episode.activity.enter(name)
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT) as self.deadline:
                await ask(self.environment, name)
        except InfrastructureError as error:
            self._fail(error)
        except TimeoutError:
            self._fail(EnvironmentFailure(f"{name} took longer than {CLOSE_TIMEOUT:g} s"))

    def _fail(self, error: InfrastructureError) -> None:
        """Record the first failure; a later one (say, in close) never hides its cause."""
        if self.trace.error is None:
            self.trace.error = Failure.of(error)
            # Where only scoring failed, the episode has ended, and can be scored again.
            if self.episode.activity.doing != "score" or self.trace.stop_reason is None:
                self.trace.stop_reason = StopReason.ERROR
            self.trace.score = None
