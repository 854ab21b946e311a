"""The one rollout loop: a model acts in an environment until it ends, and is scored."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import TypeAdapter

from vf.environments.environment import Environment, Observation, Step
from vf.inference.model import Conversation, LimitReached, Model, Sampling, own_sampling
from vf.runtime.calling import call
from vf.runtime.errors import (
    ConfigError,
    EnvironmentFailure,
    InfrastructureError,
    ModelError,
    RubricError,
)
from vf.runtime.own_deadline import clocked
from vf.runtime.seeding import derive_seed
from vf.traces.messages import Message, as_messages
from vf.traces.task import Task
from vf.traces.trace import Failure, StopReason, Trace, Turn


class Activity:
    """What one rollout does now; it may be read from any thread.

    Attributes:
        task: The problem.
        doing: One of ``starting``, ``place`` (it waits for one), ``server`` (it waits for one that
            is down), ``reset``, ``model``, ``step``, ``score``, ``close``, ``release``.
        since: When that began, in seconds of ``time.monotonic``.
        turn: Turns that the model has answered.
    """

    __slots__ = ("_on_change", "doing", "since", "task", "turn")

    def __init__(self, task: Task, on_change: Callable[[], None] | None = None) -> None:
        self.task = task
        self.doing = "starting"
        self.since = time.monotonic()
        self.turn = 0
        self._on_change = on_change

    def enter(self, doing: str) -> None:
        """Begin something else."""
        self.doing = doing
        self.since = time.monotonic()
        if self._on_change is not None:
            self._on_change()


CLOSE_TIMEOUT = 30.0  # seconds that an environment gets to close, after which it is left behind
_BOUNDARY: dict[str, type[InfrastructureError]] = {"model": ModelError, "score": RubricError}
_JSON: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])


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

    Whatever fails on the way (model, tool, environment, rubric, a deadline) ends this rollout
    with ``Trace.error`` set and no score, and nothing else.

    Args:
        environment: The definition; the rollout works on its own copy.
        task: The problem.
        model: Who answers.
        sampling: How to sample each turn; by default as the model does by itself. Its ``seed`` is
            replaced by one per turn.
        seed: Seed of the episode: the environment's ``rng`` and every turn derive from it.
        activity: Kept up to date with what the rollout does.

    Returns:
        The trace, also where something failed.

    Raises:
        ConfigError: The environment or its tools are set up wrongly.
        asyncio.CancelledError: The caller gave up; the environment is closed first.
    """
    activity = activity or Activity(task)
    sampling = sampling or own_sampling(model)
    return await _Rollout(environment, task, model, sampling, seed, activity).run()


class _Rollout:
    """The state of one rollout while it runs."""

    def __init__(
        self,
        environment: Environment,
        task: Task,
        model: Model,
        sampling: Sampling,
        seed: int,
        activity: Activity,
    ) -> None:
        self.environment = environment.episode(derive_seed(seed, "environment"))
        self.task = task
        self.model = model
        self.sampling = sampling
        self.seed = seed
        self.toolbox = self.environment.toolbox
        self.conversation = Conversation(tools=self.toolbox.schemas())
        self.trace = Trace(
            environment=environment.id or type(environment).__name__, task=task, seed=seed
        )
        self.trace.messages = self.conversation.messages
        self.trace.tools = self.conversation.tools
        self.trace.branches = self.conversation.branches
        self.trace.forks = self.conversation.forks
        self.trace.tool_events = self.environment.tool_events
        self.trace.timing = self.environment.timing
        self.activity = activity

    async def run(self) -> Trace:
        trace, started = self.trace, time.perf_counter()
        try:
            async with clocked(self.environment.timeout) as deadline:
                trace.stop_reason = await self._episode()
                with self._phase("score"):
                    trace.score = await self.environment.rubric.score(trace)
        except InfrastructureError as error:
            self._fail(error)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            limit = f"the rollout took longer than its {self.environment.timeout:g} s"
            failure = _BOUNDARY.get(self.activity.doing, EnvironmentFailure)(
                f"{limit}, and was waiting for {self.activity.doing}"
            )
            failure.__cause__ = error
            self._fail(failure)
        finally:
            try:
                await self._end("close")
            finally:
                await self._end("release")
            trace.timing["total"] = time.perf_counter() - started
        return trace

    async def _episode(self) -> StopReason:
        environment, conversation = self.environment, self.conversation
        clock = environment.timeout
        with self._phase("reset"):
            conversation.messages += _messages("reset", await self._ask("reset", self.task))
            await environment.settle()
        self.toolbox = environment.toolbox
        self.trace.tools = conversation.tools = self.toolbox.schemas()
        if environment.timeout != clock:
            raise ConfigError(
                f"environment {self.trace.environment!r}: reset set self.timeout, but the "
                "rollout's clock runs already; set it in the class or in __init__"
            )
        self.trace.prompt_messages = len(conversation.messages)
        if not conversation.messages:
            raise EnvironmentFailure(f"reset returned no messages for task {self.task.id!r}")
        sampled = 0
        while True:
            budget = self.sampling.max_tokens
            if environment.max_tokens is not None:
                budget = min(budget, environment.max_tokens - sampled)
            if budget < 1:
                return StopReason.MAX_TOKENS
            try:
                await self._answer(budget)
            except LimitReached as limit:
                return limit.reason
            sampled = self.trace.completion_tokens
            environment.turn = conversation.turn - 1
            with self._phase("step"):
                step = _checked(await self._ask("step", conversation.messages[-1]))
            self.trace.step_rewards.append(float(step.reward))
            self.trace.info.update(step.info)
            observation = _messages("step", step.observation)
            self._check_tools()
            conversation.messages += observation
            if step.terminated:
                return StopReason.TERMINATED
            if step.truncated:
                return StopReason.TRUNCATED
            if conversation.turn >= environment.max_turns:
                return StopReason.MAX_TURNS
            if not observation:
                raise EnvironmentFailure("step neither ended the episode nor returned messages")

    def _check_tools(self) -> None:
        """Make sure that the tools are still those that the model was shown.

        Raises:
            ConfigError: They were changed in mid-episode.
        """
        toolbox = self.environment.toolbox
        if toolbox is not self.toolbox and toolbox.schemas() != self.conversation.tools:
            raise ConfigError(
                f"environment {self.trace.environment!r}: self.tools was changed after reset; the "
                "model has seen an episode's tools by then. Set them in reset, and have a "
                "tool that cannot be used yet raise vf.ToolError"
            )

    async def _answer(self, max_tokens: int) -> None:
        conversation = self.conversation
        sampling = self.sampling.with_(
            max_tokens=max_tokens, seed=derive_seed(self.seed, "turn", conversation.turn)
        )
        with self._phase("model") as timer:
            try:
                reply = await self.model.respond(conversation, sampling)
            except (InfrastructureError, ConfigError, LimitReached):
                raise
            except Exception as error:
                raise ModelError(f"the model raised {type(error).__name__}: {error}") from error
        self.trace.turns.append(
            Turn(reply.prompt_tokens, reply.completion_tokens, reply.finish_reason, timer())
        )
        conversation.messages.append(reply.message)
        conversation.turn += 1
        self.activity.turn = conversation.turn

    async def _ask(self, name: str, *args: Any) -> Any:
        """Call the environment, and put its name on whatever it raises."""
        try:
            return await call(getattr(self.environment, name), *args)
        except (InfrastructureError, ConfigError):
            raise
        except Exception as error:
            raise EnvironmentFailure(f"{name} raised {type(error).__name__}: {error}") from error

    async def _end(self, name: str) -> None:
        self.activity.enter(name)
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self._ask(name)
        except InfrastructureError as error:
            self._fail(error)
        except TimeoutError:
            self._fail(EnvironmentFailure(f"{name} took longer than {CLOSE_TIMEOUT:g} s"))

    def _fail(self, error: InfrastructureError) -> None:
        """Record the first failure; a later one (say, in close) never hides its cause."""
        if self.trace.error is None:
            self.trace.error = Failure.of(error)
            if (
                self.activity.doing != "score"
            ):  # else the episode has ended, and can be scored again
                self.trace.stop_reason = StopReason.ERROR
            self.trace.score = None

    @contextmanager
    def _phase(self, name: str) -> Iterator[Any]:
        """Time a phase, and remember it for the message of a deadline that passes in it."""
        self.activity.enter(name)
        started = time.perf_counter()
        try:
            yield lambda: time.perf_counter() - started
        finally:
            spent = time.perf_counter() - started
            self.trace.timing[name] = self.trace.timing.get(name, 0.0) + spent


_RETURNS = "It returns the first messages and nothing else, as self.first_messages(task) does"


def _messages(name: str, observation: Observation) -> list[Message]:
    try:
        return as_messages(observation)
    except ConfigError as error:
        hint = f". {_RETURNS}" if name == "reset" else ""
        raise EnvironmentFailure(f"{name} returned a wrong observation: {error}{hint}") from error


def _checked(step: object) -> Step:
    """Return what ``step`` returned, if the trace can record it."""
    if not isinstance(step, Step):
        raise EnvironmentFailure(
            f"step returned {type(step).__name__}, not vf.Step; write return "
            "vf.Step(observation, reward=..., terminated=...)"
        )
    try:
        finite = math.isfinite(step.reward)
    except TypeError:
        finite = False
    if not finite:
        raise EnvironmentFailure(f"step returned a reward of {step.reward!r}")
    if not isinstance(step.info, dict):
        raise EnvironmentFailure(f"step returned {type(step.info).__name__} as info, not a dict")
    try:
        _JSON.dump_json(step.info)
    except ValueError as error:
        raise EnvironmentFailure(f"step returned info that is not JSON: {error}") from error
    return step
