"""A v1 taskset of verifiers as a vf-rl environment."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from pydantic import ValidationError

from vf.bridges.verifiers.checks import check_data, check_package, check_v1, uses_runtime
from vf.bridges.verifiers.rewards import RewardRange, reward_range
from vf.bridges.verifiers.v0 import NO_LIMIT
from vf.bridges.verifiers.v1_rollout import V1Rollout, prompt_of
from vf.bridges.verifiers.v1_tools import serve
from vf.bridges.verifiers.v1_user import UserTurns, load_user
from vf.environments.environment import Environment, Split, Step
from vf.rubrics.group import GroupReward
from vf.runtime.errors import (
    ConfigError,
    EnvironmentFailure,
    RubricError,
    SandboxError,
    did_you_mean,
)
from vf.sandbox.hosting.source import Sandboxes, sandbox_source
from vf.sandbox.source import SandboxSource
from vf.tools.episode import Service
from vf.tools.tool_box import ToolBox
from vf.traces.messages import Message
from vf.traces.task import Task
from vf.traces.trace import Score, Trace

MOST_TRAIN, MOST_EVAL = 2000, 200  # tasks of an infinite taskset


class TasksetEnvironment(Environment):
    """A verifiers taskset of the v1 API.

    Its tasks, prompts, tools, ``@vf.stop``, ``@vf.reward``, ``@vf.metric`` and judges are used;
    the conversation is that of verifiers' ``null`` harness.

    Args:
        name: Its name, for messages.
        taskset: The taskset that training takes tasks from.
        reward_range_given: The rewards worth 0 and 1.
        eval_taskset: The taskset that evaluation takes tasks from; the same by default.
        user: Its package's ``Env``, where that plays the user; see
            :mod:`~vf.bridges.verifiers.v1_user`.
        sandbox: The sandboxes in which its tasks run commands, if they do; see
            :func:`~vf.sandbox.hosting.source.sandbox_source`. None is ``"auto"``.

    Raises:
        ConfigError: If it needs what vf-rl cannot provide, is empty, or has no rewards.
    """

    _turns: UserTurns | None = None  # of an episode

    def __init__(
        self,
        name: str,
        taskset: Any,
        reward_range_given: Sequence[float] | None = None,
        eval_taskset: Any | None = None,
        user: Any | None = None,
        sandbox: Sandboxes | None = None,
    ) -> None:
        self.name, self.user = name, user
        self.tasksets = {
            "train": taskset,
            "eval": taskset if eval_taskset is None else eval_taskset,
        }
        first = next(iter(taskset), None)
        if first is None:
            raise ConfigError(f"{name}: its taskset is empty")
        check_v1(name, taskset, first, user=user is not None)
        self.task_class, self.task_config = type(first), first.config
        self.max_turns = NO_LIMIT
        self.source: SandboxSource | None = None
        if uses_runtime(first):
            self.source = sandbox_source("auto" if sandbox is None else sandbox)
            self.tool_timeout = self.timeout  # setup and scoring, too, are calls of one turn
        elif sandbox is not None:
            raise ConfigError(f"{name}: its tasks run nothing in a runtime, so drop sandbox")
        weights = [getattr(fn, "_vf_weight", 1.0) for fn in first.hooks("reward")]
        weights += [judge.config.weight for judge in first.plugged_judges()]
        if not weights and user is None:  # which may record rewards
            raise ConfigError(f"{name}: its tasks have no @vf.reward, so there is nothing to learn")
        self.scale = reward_range(name, reward_range_given, [weights])
        self._shared = [serve(toolset) for toolset in type(taskset).toolsets(taskset.config)]
        own = [serve(toolset) for toolset in self.task_class.toolsets(self.task_config)]
        self._announced = [tool for served in (*own, *self._shared) for tool in served.tools]
        self.rubric = TasksetRubric(self)

    def tasks(self, split: Split) -> Iterator[Task]:
        """Yield its tasks. Of an infinite taskset, the first 2000 are for training, 200 for eval.

        Raises:
            ConfigError: If a task needs what vf-rl cannot provide.
        """
        taskset = self.tasksets[split]
        theirs: Iterator[Any] = iter(taskset)
        if not getattr(taskset, "bounded", not taskset.INFINITE):
            same = taskset is self.tasksets["train"]
            start, count = (MOST_TRAIN, MOST_EVAL) if split == "eval" else (0, MOST_TRAIN)
            theirs = itertools.islice(theirs, start * same, start * same + count)
        import verifiers.v1 as v1

        for index, task in enumerate(theirs):
            data = task.data
            check_data(self.name, data, user=self.user is not None)
            prompt = [message.model_dump(exclude_none=True) for message in prompt_of(data, v1)]
            yield Task(
                f"{split}-{index if data.idx is None else data.idx}",
                [_openai(message) for message in prompt],
                getattr(data, "answer", None),
                {"data": data.model_dump(mode="json")},
            )

    def theirs(self, task: Task) -> Any:
        """Return verifiers' task for a vf-rl task.

        Raises:
            EnvironmentFailure: If the task is not one of :meth:`tasks`.
        """
        data = task.info.get("data")
        if data is None:
            raise EnvironmentFailure(f"{self.name}: task {task.id!r} is not one of its tasks")
        return self.task_class(self.task_class.data_type().model_validate(data), self.task_config)

    async def reset(self, task: Task) -> list[Message]:
        """Set the task up, and return its prompt."""
        for served in self._shared:
            await served.ready()
        theirs = self.theirs(task)
        self._rollout = V1Rollout(theirs, self._shared, self._runtime(theirs))
        self.rubric = TasksetRubric(self, self._rollout)
        messages = await self._rollout.open()
        if self.user is not None:
            self._turns = UserTurns(self.user, self._rollout)
            user_messages = await self._turns.next()
            if user_messages is None:
                raise EnvironmentFailure(f"{self.name}: its user said nothing to the model")
            messages += self._rollout.add_user_messages(user_messages)
        if (stop := await self._rollout.stopped()) is not None:
            raise EnvironmentFailure(f"{self.name}: {stop} stopped it before the model was asked")
        return messages

    async def step(self, reply: Message) -> Step:
        """Run the tool calls, and end when there are none, or the task says so."""
        rollout = self._rollout
        rollout.add(reply, "tool_calls" if reply.tool_calls else "stop")
        if not reply.tool_calls:
            return await self._user_step() if self._turns else self._ended([], "agent_completed")
        results = await rollout.run_tools(reply, self.tool_events, self.turn)
        stop = await rollout.stopped()
        return Step(results) if stop is None else self._ended(results, stop)

    async def _user_step(self) -> Step:
        """Give the user the answer, and end when the user has no further message."""
        assert self._turns is not None
        user_messages = await self._turns.answer(self._rollout.segment())
        if user_messages is None:
            return self._ended([], "user_closed")
        messages = self._rollout.add_user_messages(user_messages)
        stop = await self._rollout.stopped()
        return Step(messages) if stop is None else self._ended(messages, stop)

    def _ended(self, results: list[Message], condition: str) -> Step:
        info = {"verifiers": {"stop_condition": condition}}
        return Step(results, terminated=True, info=info)

    def _runtime(self, theirs: Any) -> Any:
        if self.source is None:
            return None
        from vf.bridges.verifiers.v1_runtime import SandboxRuntime

        return SandboxRuntime(self.sandbox, self, dict(theirs.runtime_env()))

    @property
    def services(self) -> list[Service]:
        """Where its sandboxes come from."""
        return [] if self.source is None else [self.source]

    async def close(self) -> None:
        """Close the user and the task's tools."""
        if (turns := self.__dict__.pop("_turns", None)) is not None:
            await turns.close()
        rollout: V1Rollout | None = self.__dict__.pop("_rollout", None)
        if rollout is not None:
            await rollout.close()

    @property
    def toolbox(self) -> ToolBox:
        """Its tools with their schemas for the model; its own servers run them."""
        if self._toolbox is None:
            self._toolbox = ToolBox(self._announced)
        return self._toolbox


class TasksetRubric:
    """Scores with a task's own functions. Has the interface of a rubric.

    Args:
        environment: The environment.
        rollout: The live rollout; without it a saved trace is scored.
    """

    group_rewards: Mapping[str, GroupReward] = {}

    def __init__(self, environment: TasksetEnvironment, rollout: V1Rollout | None = None) -> None:
        self._environment = environment
        self._rollout = rollout

    async def score(self, trace: Trace) -> Score:
        """Score a trace.

        Raises:
            RubricError: If a function raised or returned something out of range, or a saved trace
                cannot be scored again.
        """
        name, scale = self._environment.name, self._environment.scale
        rollout = self._rollout or self._replayed(trace)
        try:
            if self._rollout is not None and self._environment._turns is not None:
                await self._environment._turns.finish()
            scored = await rollout.score(trace)
        except RubricError:
            raise
        except Exception as error:
            cause = error.__cause__ or error
            if isinstance(cause, SandboxError):  # lost with its machine, not through the task
                raise cause from error
            if rollout.runtime is not None and await rollout.runtime.has_ended():
                return scale.score(scale.low, {}, {"sandbox_ended": 1.0})
            raise RubricError(f"{name}: {type(cause).__name__}: {cause}") from error
        return _score(scale, scored)

    async def score_group(self, traces: Sequence[Trace]) -> None:
        """Do nothing: each trace has its whole score."""

    def _replayed(self, trace: Trace) -> V1Rollout:
        """Return a rollout with the trace's messages."""
        environment = self._environment
        task = environment.theirs(trace.task)
        import verifiers.v1 as v1
        from verifiers.v1.state import State, state_cls

        live = environment.user is not None or type(task).setup is not v1.Task.setup
        live = live or environment.source is not None
        if live or state_cls(type(task)) is not State:
            raise RubricError(
                f"{environment.name}: its rewards may read the state of the live rollout, so a "
                "saved trace cannot be scored again"
            )
        if trace.lineages:
            raise RubricError(
                f"{environment.name}: its rewards read one conversation, and the trace has "
                f"{len(trace.lineages)}, so it cannot be scored again"
            )
        rollout = V1Rollout(task, ())
        for message in trace.messages[trace.prompt_messages :]:
            if message.role == "assistant":
                rollout.add(message, "tool_calls" if message.tool_calls else "stop")
            else:
                rollout.add_result(message)
        rollout.trace.stop_condition = trace.info.get("verifiers", {}).get("stop_condition")
        return rollout


def load_taskset(
    name: str, environment_id: str, module: ModuleType, args: Mapping[str, Any]
) -> tuple[Any, Any | None]:
    """Make a taskset of verifiers' v1 API, and the ``Env`` that plays its user, if there is one.

    Raises:
        ConfigError: If the module exports none, or its config does not take the arguments.
    """
    import verifiers.v1 as v1
    from verifiers.v1.utils import loaders

    exported = [getattr(module, export, None) for export in getattr(module, "__all__", ())]
    if not any(isinstance(value, type) and issubclass(value, v1.Taskset) for value in exported):
        raise ConfigError(
            f"{name}: {module.__name__} is not a verifiers environment: it has neither a function "
            "load_environment (v0) nor a Taskset in its __all__ (v1)"
        )
    check_package(name, environment_id)
    config_type = loaders.taskset_config_type(environment_id)
    try:
        config = config_type.model_validate({"id": environment_id, **args})
    except ValidationError as error:
        fields = [field for field in config_type.model_fields if field != "id"]
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(
            f"{name}: {where}: {first['msg']}.{did_you_mean(where, fields)} Its taskset takes: "
            f"{', '.join(fields)}; reward_range, eval_args and sandbox are vf-rl's"
        ) from None
    user = load_user(name, environment_id, config)
    return (loaders.load_taskset(config) if user is None else user.taskset), user


def _score(scale: RewardRange, trace: Any) -> Score:
    rewards = {name: reward for name, reward in trace.rewards.items() if reward is not None}
    parts = {name: reward.score for name, reward in rewards.items() if reward.weight}
    rest = {name: reward.score for name, reward in rewards.items() if not reward.weight}
    return scale.score(trace.reward, parts, {**rest, **trace.metrics})


def _openai(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message of verifiers in OpenAI's format, where a tool call has a function."""
    calls = [
        {
            "id": call["id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": call["arguments"]},
        }
        for call in message.get("tool_calls") or ()
    ]
    return message | {"tool_calls": calls} if calls else message
