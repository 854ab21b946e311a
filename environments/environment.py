"""The environment: Gymnasium's reset and step, for conversations."""

from __future__ import annotations

import asyncio
import copy
import inspect
import random
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, cast

from vf.environments.contexts import Context, context_of
from vf.rubrics.group import AnyRubric, check_rubric
from vf.rubrics.rubric import Rubric, episode_return
from vf.runtime.calling import call, instant
from vf.runtime.errors import ConfigError
from vf.sandbox.source import SandboxSource
from vf.sandbox.spec import SandboxSpec
from vf.tools.episode import Closing, Held, ListedLater, Service, ToolSet, bound
from vf.tools.episode_sandbox import EpisodeSandbox
from vf.tools.tool_box import ToolBox
from vf.traces.images import BadImage
from vf.traces.messages import Message, as_messages
from vf.traces.task import Split as Split
from vf.traces.task import Task
from vf.traces.tools import Tool, tool_methods
from vf.traces.trace import ToolEvent

Observation: TypeAlias = str | list[Message] | list[dict[str, Any]]


@dataclass(slots=True)
class Step:
    """What an environment answers: Gymnasium's five values.

    Attributes:
        observation: Text (a user message) or messages for the model to read next.
        reward: Reward of this step, recorded in the trace; the rubric decides its value.
        terminated: The task has ended by its own rules.
        truncated: The episode was cut short from outside.
        info: Anything worth recording; merged into ``Trace.info``.
    """

    observation: Observation = field(default_factory=list)
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = field(default_factory=dict)


# Names that a tool cannot have, in addition to the class's: an episode's own attributes, and the
# optional methods.
_EPISODES_OWN = {"rng", "timing", "trace_info"}
_OPTIONAL = {"oracle", "hackers", "privileged_context", "sandbox_spec", "play_episode"}


class Environment:
    """A multi-turn environment that a language model acts in.

    The object you make is the definition: tasks, tools, rubric, limits. Each rollout works on its
    own shallow copy (:meth:`episode`), so whatever :meth:`reset` sets on ``self`` is one episode's
    state. Set mutable state in ``reset``, never in ``__init__``.

    ``reset``, ``step`` and ``close`` may be plain functions or coroutines. Plain ones run in a
    thread, so a slow one blocks nothing else.

    Some methods are optional, and specified by protocols next to the code that calls them: for
    validation ``oracle`` (:class:`~vf.evaluation.scripts.HasOracle`) and ``hackers``
    (:class:`~vf.evaluation.scripts.HasHackers`), for a teacher ``privileged_context``
    (:class:`~vf.trainer.learning.batches.privileged_prompts.HasPrivilegedContext`), for tasks that
    have their own sandboxes ``sandbox_spec`` (:class:`~vf.environments.sandboxes.HasSandboxSpec`).

    Attributes:
        id: The name under which it was registered.
        system_prompt: Put before every task's prompt, unless None.
        tools: Functions the model may call, or tool sets such as
            :class:`~vf.tools.sandbox_tools.PythonTool` or
            :class:`~vf.environments.sub_agent.SubAgent`, in addition to the methods marked
            ``@vf.tool``. ``reset`` may replace or extend them for its episode.
        rubric: How a finished trace is scored. By default the sum of the step rewards.
        max_turns: Maximum answers of the model in one episode.
        max_tokens: Maximum tokens sampled in one episode; None for no limit.
        context: What becomes of a context that is nearly full. ``"grow"``: nothing, and where no
            answer fits, the rollout ends. ``"compact"``: the model writes a summary, which is
            trained, and continues with it in a new branch; it is not among the answers that
            ``max_turns`` counts. ``"drop_tool_results"``: old tool results are left out. Or either
            with settings: :class:`~vf.environments.contexts.Compact`,
            :class:`~vf.environments.contexts.DropToolResults`.
        expensive_reset: Whether :meth:`reset` costs money or many seconds, for example because it
            calls a model. A training run then does not call it before its first rollout.
        fetch_images: Whether images that a task's prompt gives by ``http`` or ``https`` are fetched
            when its episode begins. Otherwise they are refused; an agent's always are.
        timeout: Seconds for a whole rollout, including scoring. The answers of a served model have
            their own deadline and do not count.
        tool_timeout: Seconds for one tool call.
        rng: This episode's random generator. Use it, never the global ones.
        turn: Zero-based turn of the reply that ``step`` is answering.
        timing: Seconds of this episode by phase; recorded in ``Trace.timing``.
        trace_info: This episode's ``Trace.info``, into which the info of each step is merged. What
            is put here is kept even where the step then fails.
        task_sandbox: What ``sandbox_spec`` returned for this episode's task.
        artifacts: Folder of the run in which episodes may keep files; None outside a run.
    """

    id: str = ""
    system_prompt: str | None = None
    tools: Sequence[Callable[..., Any] | ToolSet] = ()
    rubric: AnyRubric = Rubric(outcome=episode_return)
    max_turns: int = 10
    max_tokens: int | None = None
    context: str | Context = "grow"
    expensive_reset: bool = False
    fetch_images: bool = False
    timeout: float = 300.0
    tool_timeout: float = 30.0
    rng: random.Random
    turn: int = 0
    timing: dict[str, float]
    trace_info: dict[str, Any]
    task_sandbox: SandboxSpec | None = None
    artifacts: Path | None = None
    _toolbox: ToolBox | None = None
    _boxed: tuple[Callable[..., Any] | ToolSet | Tool, ...] = ()  # what the tool box was made of
    _held: dict[Hashable, Closing]
    _nested: Any = None  # plays episodes within this one: NestedEpisodes, in the rollout loop
    _tool_methods: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._tool_methods = tool_methods(cls)
        reserved = vars(Environment).keys() | _EPISODES_OWN | _OPTIONAL
        if taken := sorted(reserved & {*cls._tool_methods}):
            raise ConfigError(
                f"environment {cls.__name__!r}: a tool cannot be called {taken[0]!r}, which every "
                "environment has already; give its method another name"
            )

    def tasks(self, split: Split) -> Iterable[Task]:
        """Return the tasks of a split. Must be the same every time.

        Raises:
            ConfigError: If the environment has no tasks of its own.
        """
        raise ConfigError(f"{type(self).__name__} does not define tasks(self, split)")

    def reset(self, task: Task) -> Observation | Awaitable[Observation]:
        """Start an episode: return the first messages. By default, the task's prompt."""
        return self.first_messages(task)

    @instant
    def step(self, reply: Message) -> Step | Awaitable[Step]:
        """Answer the model. By default: run its tool calls, and end when it makes none."""
        return self.run_tools(reply)

    @instant
    def close(self) -> Awaitable[None] | None:
        """Release what the episode holds. Called once, however the episode ended."""
        return None

    @property
    def services(self) -> list[Service]:
        """What all episodes share: by default, whatever the tool sets need."""
        sets = [entry for entry in self._tool_entries() if isinstance(entry, ToolSet)]
        return list(dict.fromkeys(service for entry in sets for service in entry.services))

    @instant
    def check(self) -> Awaitable[None] | None:
        """Check that everything that episodes need is there. Called before a run begins.
        By default, checks the :attr:`services`.

        Raises:
            ConfigError: If something is missing, such as a container engine; says how to fix it.
        """
        return _in_turn([service.check for service in self.services])

    @instant
    def start(self) -> Awaitable[None] | None:
        """Start to prepare what episodes share, without waiting for it.

        Called once in the event loop that the episodes will run in. By default, starts the
        :attr:`services`, except for sources of sandboxes if tasks have their own: their specs are
        not known yet.
        """
        later = SandboxSource if hasattr(self, "sandbox_spec") else ()
        return _in_turn([s.start for s in self.services if not isinstance(s, later)])

    def hold(self, key: Hashable, make: Callable[[], Held]) -> Held:
        """Return this episode's resource for a key, which is created at the first call.

        It is closed after :meth:`close`, however the episode ended.
        """
        if key not in self._held:
            self._held[key] = make()
        return cast(Held, self._held[key])

    async def release(self) -> None:
        """Close everything that the episode holds, even if closing one of them fails."""
        held, self._held = self._held, {}
        results = await asyncio.gather(
            *(call(thing.close) for thing in held.values()), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def timeout_of(self, task: Task) -> float:
        """Return how many seconds the rollout of a task may take, if tasks differ in that.

        By default :attr:`timeout`. Called on the episode, before it begins.
        """
        return self.timeout

    def first_messages(self, task: Task) -> list[Message]:
        """Return the system prompt (if any) and the task's prompt as messages.

        Raises:
            ConfigError: If the prompt is none, or an image in it cannot be read.
        """
        try:
            messages = as_messages(task.prompt)
        except BadImage as error:
            raise BadImage(f"task {task.id!r}: {error}") from error
        if self.system_prompt is not None:
            messages.insert(0, Message("system", self.system_prompt))
        return messages

    async def run_tools(self, reply: Message) -> Step:
        """Run the reply's tool calls concurrently; without any, the episode has terminated.

        Raises:
            ToolFailure: If a tool failed. A wrong call is not one: the model receives an error.
        """
        if not reply.tool_calls:
            return Step(terminated=True)
        return Step(
            await self.toolbox.run(reply.tool_calls, turn=self.turn, timeout=self.tool_timeout)
        )

    @property
    def toolbox(self) -> ToolBox:
        """This episode's tools: those in ``self.tools`` now, and the methods marked ``@vf.tool``.

        Raises:
            ConfigError: If a tool is invalid, or two have one name.
        """
        entries = self._tool_entries()
        if self._toolbox is None or entries != self._boxed:
            methods = [getattr(self, name) for name in self._tool_methods]
            tools = bound([*entries, *methods], self)
            events = self._toolbox.events if self._toolbox is not None else []
            self._toolbox, self._boxed = ToolBox(tools, events), entries
        return self._toolbox

    @property
    def sandbox(self) -> EpisodeSandbox:
        """This episode's sandbox: the one that its tools share, opened when it is first needed.

        In ``reset``, ``self.sandbox.write(path, content)`` puts files into it. An environment that
        uses one without such tools keeps where it comes from as ``self.source``.

        Raises:
            ConfigError: If its tools have no sandbox, or several.
        """
        sets = [entry for entry in self._tool_entries() if isinstance(entry, ToolSet)]
        given: set[Any] = {getattr(entry, "source", None) for entry in sets} - {None}
        sources: set[Any] = given or {getattr(self, "source", None)} - {None}
        if len(sources) != 1:
            raise ConfigError(
                f"{self._where}: self.sandbox needs one source of sandboxes, and there are "
                f"{len(sources)}; in __init__, write self.source = vf.sandbox_source(...), and "
                "give the same one to all tools: self.tools = [vf.PythonTool(self.source)]"
            )
        return EpisodeSandbox.of(self, sources.pop())

    @sandbox.setter
    def sandbox(self, value: object) -> None:
        raise ConfigError(
            f"{self._where}: self.sandbox is the episode's sandbox; keep where it comes from under "
            "another name, such as self.source"
        )

    @property
    def tool_events(self) -> list[ToolEvent]:
        """What became of the tool calls so far in this episode."""
        return self.toolbox.events

    def episode(self, seed: int) -> Environment:
        """Return a fresh copy for one episode, with its own ``rng``.

        Raises:
            ConfigError: If a limit is out of range, or the rubric is not a rubric.
        """
        self.check_settings()
        episode = copy.copy(self)
        # A list of its own, which `reset` may append to; past a property, which stays in charge.
        episode.__dict__["tools"] = [*self._tool_entries()]
        episode.rng = random.Random(seed)
        episode._toolbox = None
        episode._held = {}
        episode.timing = {}
        episode.trace_info = {}
        return episode

    async def settle(self) -> None:
        """Look at what ``reset`` has set: called after it, before the model is asked.

        Raises:
            ConfigError: If a limit, the rubric or a tool is invalid.
        """
        self.check_settings()
        for entry in self._tool_entries():
            if isinstance(entry, ListedLater):
                await entry.list_tools()

    @property
    def _where(self) -> str:
        return f"environment {self.id or type(self).__name__!r}"

    def check_settings(self) -> None:
        """Check the limits, the system prompt and the rubric.

        Raises:
            ConfigError: If one of them is invalid; the message says what to write.
        """
        where = self._where
        for name in ("max_turns", "max_tokens", "timeout", "tool_timeout"):
            limit = getattr(self, name)
            number = isinstance(limit, int | float) and not isinstance(limit, bool)
            if limit is not None and not (number and limit > 0):
                raise ConfigError(f"{where}: {name} must be positive, got {limit!r}")
        context_of(self.context, where)
        if not isinstance(self.system_prompt, str | None):
            raise ConfigError(f"{where}: system_prompt must be text, got {self.system_prompt!r}")
        try:
            check_rubric(self.rubric)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error

    def _tool_entries(self) -> tuple[Callable[..., Any] | ToolSet | Tool, ...]:
        if isinstance(self.tools, list | tuple) and tuple(self.tools) == self._boxed:
            return self._boxed
        where = f"{self._where}: tools"
        if not isinstance(self.tools, list | tuple):
            raise ConfigError(f"{where} must be a list, got {self.tools!r}; write tools = [...]")
        for entry in self.tools:
            if inspect.isclass(entry) and hasattr(entry, "bind"):
                raise ConfigError(
                    f"{where} holds the class {entry.__name__}; make an object of it: "
                    f"{entry.__name__}(...)"
                )
            if not callable(entry) and not isinstance(entry, ToolSet | Tool):
                raise ConfigError(
                    f"{where} holds {entry!r}, which is neither a function nor a tool set"
                )
        return tuple(self.tools)


async def _in_turn(functions: Sequence[Callable[[], Awaitable[None]]]) -> None:
    for function in functions:
        await function()
