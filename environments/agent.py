"""Agents as environments: programs with their own loop, which call a model at an endpoint."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

from vf.environments.agent_episode import Attempt as Attempt
from vf.environments.agent_episode import run_agent
from vf.environments.contexts import only_grows
from vf.environments.datasets.tasks import tasks_from
from vf.environments.environment import Environment
from vf.environments.episode import Episode
from vf.inference.endpoint.address import Endpoint
from vf.inference.models.scripted_model import Script
from vf.rubrics.group import AnyRubric
from vf.rubrics.rubric import Rubric, episode_return
from vf.runtime.async_processes import AsyncProcesses
from vf.runtime.calling import call_for_text
from vf.runtime.errors import ConfigError
from vf.runtime.rows import Row, Source
from vf.sandbox.spec import SandboxSpec
from vf.tools.episode import Service
from vf.traces.task import Split, Task
from vf.traces.trace import StopReason, Trace

AgentFunction: TypeAlias = Callable[[Task, Endpoint], str | Awaitable[str | None] | None]
Work: TypeAlias = Callable[[Task, Endpoint], Awaitable[str | None]]
Rows: TypeAlias = Source | Iterable[Task | Row]
Tasks: TypeAlias = Rows | Mapping[Any, Rows] | Callable[[Split], Rows]
F = TypeVar("F", bound=AgentFunction)

MAX_TURNS = 100  # answers: agents take dozens of turns where a tool loop takes a few
TIMEOUT = 600.0  # seconds of an agent's own time


@runtime_checkable
class Agent(Protocol):
    """An agent that is more than a function: the definition, which attempts are made from.

    Attributes:
        services: What all attempts share.
        home: The module that it is written in.
    """

    home: str

    @property
    def services(self) -> list[Service]: ...

    def check(self) -> None:
        """Look whether all that attempts will need is there.

        Raises:
            ConfigError: If something is missing; the message says how to fix it.
        """
        ...

    def sandbox_spec(self, task: Task) -> SandboxSpec | None:
        """Return the spec of a task's sandbox.

        See :class:`~vf.environments.sandboxes.HasSandboxSpec`.
        """
        ...

    def attempt(self, task: Task, endpoint: Endpoint, episode: AgentEnvironment) -> Attempt:
        """Return one attempt at a task; nothing is started yet."""
        ...

    def measured(self) -> dict[str, Any]:
        """Return what results depend on: whatever stays the same as long as the agent does."""
        ...


def agent(fn: F) -> F:
    """Mark a function as an agent: it gets a task and an endpoint, and may return a text.

    Example::

        @vf.agent
        async def solve(task: vf.Task, endpoint: vf.Endpoint) -> str | None:
            client = openai.AsyncOpenAI(base_url=endpoint.url, api_key=endpoint.key)
            ...

    Raises:
        ConfigError: If the agent takes neither of them.
    """
    where = f"vf.agent: {getattr(fn, '__qualname__', fn)!s}"
    if not callable(fn):
        raise ConfigError(f"{where} is not a function but a {type(fn).__name__}")
    try:
        inspect.signature(fn).bind("task", "endpoint")
    except TypeError as error:
        raise ConfigError(
            f"{where} cannot be called with a task and an endpoint: {error}; write "
            "async def solve(task: vf.Task, endpoint: vf.Endpoint) -> str | None"
        ) from None
    return fn


def reported(trace: Trace) -> float:
    """1 if a harness has reported a reward for the rollout; 0 otherwise.

    Range: 0 or 1.

    Formula: whether there is a step reward.

    Source: for rewards that come over ``POST .../reward``, and may be forgotten there.

    Known ways to game it: none; it is not a reward.
    """
    return float(bool(trace.step_rewards))


class AgentEnvironment(Environment):
    """Tasks for an agent with its own loop, tools and prompts.

    The agent sends its requests to the :class:`~vf.inference.endpoint.address.Endpoint` of the
    rollout, with any client library. ``tools``, ``system_prompt``, ``reset`` and ``step`` are not
    used.

    Example::

        vf.register("my-agent", vf.AgentEnvironment(solve, tasks="tasks.jsonl", rubric=rubric))

    Args:
        agent: A function of a task and an endpoint, sync (it runs in a thread) or async. Its return
            value is recorded as ``trace.info["output"]``, and None or a missing one as an empty
            text. Or an :class:`Agent`.
        tasks: A list of tasks or rows, a file of rows, anything else that
            :func:`~vf.environments.datasets.tasks.tasks_from` reads, or a function of the split
            that returns tasks or rows. Rows have the fields ``prompt`` and, as far as needed,
            ``answer``, ``id`` and ``info``.
        rubric: Scorer of a finished trace. By default the reward that was reported to
            ``endpoint.reward_url``, or 0 without one; the metric ``reported`` counts these.
        max_turns: Maximum answers of the model in one episode.
        max_tokens: Maximum tokens sampled in one episode; None for no limit.
        timeout: Seconds that the agent gets, excluding the model's answers. If it takes longer, it
            is stopped and scored as truncated. Scoring gets the same number of seconds. May be a
            function of the task.
        crash: Meaning of a failure after the agent's first answer: ``"scored"``, because the
            model may have caused it, or ``"failed"``. Before that, it is always a failure.
        model: The name under which the model is served to the agent, ``endpoint.model``.
        strict_model: Whether requests for other models are refused. By default the same model
            answers them, and ``trace.info["asked"]["model"]`` holds their names.
        processes: Number of processes that run the function, each with many episodes at a time; 0
            for this process, whose interpreter it then shares with the trainer. They import it, so
            it must be at the top level of a module.
        oracle: The replies of a model that solves a task, as
            :class:`~vf.evaluation.scripts.HasOracle` specifies them.

    Attributes:
        info: This episode's ``Trace.info``.

    Raises:
        ConfigError: If an argument is invalid.
    """

    rubric: AnyRubric = Rubric(outcome=episode_return, metrics=[reported])
    expensive_reset = True  # there is none: the agent begins, with prompts of its own
    own_clock = True  # an agent that runs out of time is scored
    info: dict[str, Any]

    def __init__(
        self,
        agent: AgentFunction | Agent,
        *,
        tasks: Tasks,
        rubric: AnyRubric | None = None,
        max_turns: int = MAX_TURNS,
        max_tokens: int | None = None,
        timeout: float | Callable[[Task], float] = TIMEOUT,
        crash: Literal["scored", "failed"] = "scored",
        model: str = "policy",
        strict_model: bool = False,
        processes: int = 0,
        oracle: Callable[[Task], Script | None] | None = None,
    ) -> None:
        if crash not in ("scored", "failed"):
            raise ConfigError(f'crash must be "scored" or "failed", got {crash!r}')
        self.agent = _agent(agent, processes)
        self._source = tasks
        self._oracle = oracle
        if rubric is not None:
            self.rubric = rubric
        self.max_turns = max_turns
        self.max_tokens = max_tokens
        self._timeout = timeout
        self.timeout = TIMEOUT if callable(timeout) else timeout
        self.crash = crash
        self.model = model
        self.strict_model = strict_model
        self.__module__ = self.agent.home  # where it is found, when it is registered there

    def check_settings(self) -> None:
        """Check the limits and the rubric.

        Raises:
            ConfigError: If an argument is invalid; the message says what to write.
        """
        super().check_settings()
        only_grows(self.context, self._where, "the agent's own program decides what its model sees")

    @property
    def services(self) -> list[Service]:
        """What all episodes share."""
        return self.agent.services

    async def check(self) -> None:
        """Look whether all that the agent needs is there.

        Raises:
            ConfigError: If something is missing.
        """
        self.agent.check()
        for service in self.services:
            await service.check()

    def tasks(self, split: Split) -> Iterator[Task]:
        """Return the tasks of a split.

        Raises:
            ConfigError: If there are no tasks, or a row is invalid.
        """
        return listed(self._source, split)

    def oracle(self, task: Task) -> Script | None:
        """Return what a model that solves this task says, if a function for that was given."""
        return None if self._oracle is None else self._oracle(task)

    def sandbox_spec(self, task: Task) -> SandboxSpec | None:
        """Return what this task's sandbox is made from, where the agent has one for each."""
        return self.agent.sandbox_spec(task)

    def timeout_of(self, task: Task) -> float:
        """Return how many seconds the agent gets for a task."""
        return self._timeout(task) if callable(self._timeout) else self.timeout

    def attempt(self, task: Task, endpoint: Endpoint) -> Attempt:
        """Return this episode's attempt; it is closed with the episode."""
        return self.hold("agent", lambda: self.agent.attempt(task, endpoint, self))

    async def play_episode(self, episode: Episode) -> StopReason:
        """Let the agent work on the episode's task, and return why it ended.

        Raises:
            InfrastructureError: If the model failed, or the agent did before its first answer.
            ConfigError: If the agent is set up wrongly.
        """
        self.info = episode.trace.info
        return await run_agent(
            episode,
            partial(self.attempt, episode.task),
            model=self.model,
            strict_model=self.strict_model,
            crash=self.crash,
        )


def _agent(given: AgentFunction | Agent, processes: int) -> Agent:
    if type(processes) is not int or processes < 0:
        raise ConfigError(f"processes must be 0 or a number of processes, got {processes!r}")
    if not isinstance(given, Agent):
        return _Function(given, processes)
    if processes:
        raise ConfigError("processes is for functions; a program has a process for each rollout")
    return given


class _Function:
    """A function as an agent."""

    def __init__(self, fn: AgentFunction, processes: int) -> None:
        self.fn = agent(fn)
        self.home = fn.__module__
        self.processes: _Processes | None = None
        if processes:
            self.processes = _Processes(
                fn, processes, what="the process of the agents", setting="processes"
            )

    @property
    def services(self) -> list[Service]:
        return [] if self.processes is None else [self.processes]

    def check(self) -> None:
        """Need nothing."""

    def sandbox_spec(self, task: Task) -> SandboxSpec | None:
        return None

    def attempt(self, task: Task, endpoint: Endpoint, episode: Environment) -> Attempt:
        work = partial(call_for_text, self.fn) if self.processes is None else self.processes.call
        return _Call(work, task, endpoint)

    def measured(self) -> dict[str, Any]:
        """Return the function, which its source describes."""
        return {"function": self.fn}


class _Processes(AsyncProcesses):
    """The processes of a function, shared by all episodes."""

    async def check(self) -> None:
        """Need nothing."""


class _Call:
    """One call of a function."""

    def __init__(self, work: Work, task: Task, endpoint: Endpoint) -> None:
        self.work, self.task, self.endpoint = work, task, endpoint

    async def run(self) -> str | None:
        return await self.work(self.task, self.endpoint)

    async def finish(self) -> None: ...

    async def close(self) -> None: ...


def listed(source: Tasks, split: Split) -> Iterator[Task]:
    """Return the tasks of a split from whatever was given as tasks.

    Raises:
        ConfigError: If there are no tasks, or a row is invalid.
    """
    rows: Any = source
    if callable(source):
        if inspect.signature(source).parameters:  # a function of the split
            rows = {split: _rows(source(split))}  # type: ignore[call-arg]
    elif isinstance(source, Mapping):
        rows = {name: _rows(table) for name, table in source.items()}
    else:
        rows = _rows(source)
    return tasks_from(
        rows,
        split,
        answer=lambda row: row.get("answer"),
        id=lambda row: row.get("id"),
        info=lambda row: row.get("info") or {},
    )


def _rows(source: Any) -> Any:
    """Return a source of rows in which there may be tasks."""
    if isinstance(source, str | Path) or callable(source):
        return source
    return [
        {"id": row.id, "prompt": row.prompt, "answer": row.answer, "info": row.info}
        if isinstance(row, Task)
        else row
        for row in source
    ]
