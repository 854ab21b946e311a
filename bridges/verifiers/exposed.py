"""The classes that verifiers loads: tasks, a harness that runs a vf-rl rollout, one agent.

A harness of verifiers may run its loop in the worker's own process, as long as every call of the
model goes through the rollout's interception server. Ours does: it makes the environment that the
task names, and lets the one rollout loop act in it. verifiers then takes the score that the
rubric gave while the environment was open.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import cache
from typing import Any, ClassVar, Literal, NamedTuple, cast

import verifiers.v1 as v1
from pydantic import Field, TypeAdapter, field_validator

from vf.bridges.verifiers.hosted import NO_LIMIT, InterceptedModel, metrics, record, reward
from vf.environments.environment import Environment
from vf.environments.registry import find, make
from vf.environments.roles import check_one_reward
from vf.environments.runner import rollout
from vf.inference.model import Sampling
from vf.runtime.calling import call
from vf.runtime.errors import ConfigError
from vf.runtime.seeding import derive_seed
from vf.traces.messages import as_messages
from vf.traces.task import Task

_TASK: TypeAdapter[Task] = TypeAdapter(Task)


class Plugin(NamedTuple):
    """The three classes that verifiers looks for in a module's ``__all__``.

    Attributes:
        Taskset: The environment's tasks (``verifiers.v1.Taskset``).
        Harness: What runs its rollouts (``verifiers.v1.Harness``).
        Env: One agent that acts in it (``verifiers.v1.Env``).
    """

    Taskset: type[Any]
    Harness: type[Any]
    Env: type[Any]


@cache  # episodes share what it holds, such as a pool of sandboxes
def made(id: str, arguments: str) -> Environment:
    """Return this process's environment of a name and its arguments, a JSON object.

    Raises:
        ConfigError: If it cannot be made, or has group rewards.
    """
    environment = make(id, **json.loads(arguments))
    group_rewards = environment.rubric.group_rewards
    if group_rewards:
        raise ConfigError(
            f"environment {id!r} cannot run under verifiers: its group rewards "
            f"({', '.join(group_rewards)}) compare all rollouts of a task, and verifiers scores "
            "them one by one"
        )
    return environment


class VfTasksetConfig(v1.TasksetConfig):  # type: ignore[misc]
    """Which environment, and how it is made: ``env.taskset.*``."""

    environment: str = ""
    """Name of the environment, as for vf.make."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Its arguments."""
    split: Literal["train", "eval"] = "train"
    """Which of its tasks: train, or eval, which are held out."""

    defaults: ClassVar[dict[str, Any]] = {}

    @field_validator("environment")
    @classmethod
    def _is_there(cls, id: str) -> str:
        if id:  # verifiers makes one without, to see what it takes
            try:
                find(id.partition(":")[0])
            except ConfigError as error:
                raise ValueError(str(error)) from error
        return id

    def arguments(self) -> str:
        """Return the arguments, as JSON."""
        return json.dumps({**self.defaults, **self.args}, sort_keys=True)


class VfTaskData(v1.TaskData):  # type: ignore[misc]
    """One of our tasks, and the environment that it belongs to."""

    environment: str
    arguments: str
    task: dict[str, Any]


class VfTask(v1.Task[VfTaskData, v1.State, v1.TaskConfig]):  # type: ignore[misc]
    """A task whose rollout the environment's own rubric has scored."""

    @property
    def key(self) -> str:
        """The task's id, which is its own within a split."""
        return cast(str, self.data.task["id"])

    @v1.reward  # type: ignore[untyped-decorator]
    async def reward(self, trace: Any) -> float:
        """Return what the rubric gave."""
        return reward(trace.info)

    @v1.metric  # type: ignore[untyped-decorator]
    async def components(self, trace: Any) -> dict[str, float]:
        """Return what the reward is made of, and what was measured beside it."""
        return metrics(trace.info)


class VfTaskset(v1.Taskset[VfTask, VfTasksetConfig]):  # type: ignore[misc]
    """The tasks of one split of an environment.

    Raises:
        ConfigError: If the environment cannot be made, or cannot run under verifiers.
    """

    def __init__(self, config: VfTasksetConfig) -> None:
        super().__init__(config)
        if not config.environment:
            raise ConfigError(
                "no environment is named: set env.taskset.environment, say, to 'calculator'"
            )
        self.environment = made(config.environment, config.arguments())

    def load(self) -> Iterator[VfTask]:
        """Yield the tasks, in the environment's order.

        Raises:
            ConfigError: If the policy plays several roles of a task, whose mean is the reward.
        """
        config = self.config
        for index, task in enumerate(self.environment.tasks(config.split)):
            check_one_reward(self.environment, [task], "verifiers")
            yield VfTask(
                VfTaskData(
                    idx=index,
                    name=task.id,
                    # For those who look at the run: the environment says what the model reads.
                    prompt="\n\n".join(message.content for message in as_messages(task.prompt)),
                    system_prompt=self.environment.system_prompt,
                    environment=config.environment,
                    arguments=config.arguments(),
                    task=_TASK.dump_python(task, mode="json"),
                ),
                config.task,
            )


class VfHarness(v1.Harness[v1.HarnessConfig]):  # type: ignore[misc]
    """Runs the task's environment in this process, against the rollout's interception server."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False  # in the runtime: what code there is runs in the environment's sandbox
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: VfTaskData,
    ) -> Any:
        """Run one rollout; its trace is put into ``trace.info``.

        Raises:
            verifiers.v1.RolloutError: If a part failed, so there is no reward.
        """
        environment = made(data.environment, data.arguments)
        if data.system_prompt != environment.system_prompt:  # verifiers was given another
            environment = copy.copy(environment)
            environment.system_prompt = data.system_prompt
        task = _TASK.validate_python(data.task)
        model = InterceptedModel(
            endpoint, secret, ctx.model, lambda: trace.stop_condition, environment.timeout
        )
        try:
            ours = await rollout(
                environment,
                task,
                model,
                sampling=Sampling(max_tokens=NO_LIMIT),
                seed=derive_seed("verifiers", task.id, trace.id),
            )
        finally:
            await model.close()
        record(ours, trace)
        return v1.ProgramResult(exit_code=0, stdout="", stderr="")


class VfEnvConfig(v1.SingleAgentEnvConfig):  # type: ignore[misc]
    """One agent, in the worker's process; ``env.agent.*``."""

    agent: v1.AgentConfig = v1.AgentConfig(runtime=v1.SubprocessConfig())
    """The model that acts."""

    @field_validator("agent")
    @classmethod
    def _in_this_process(cls, agent: Any) -> Any:
        if agent.runtime.type != "subprocess":
            raise ValueError(
                f"runtime {agent.runtime.type!r} cannot be used here: the environment runs in "
                "the worker, and its code in its own sandboxes; leave the runtime out, or set "
                "its type to 'subprocess'"
            )
        return agent


class VfEnv(v1.Env[VfEnvConfig]):  # type: ignore[misc]
    """One agent acts in the environment once."""

    async def start(self) -> None:
        """Get ready what the episodes of this worker share.

        Raises:
            ConfigError: If something that the environment needs is missing; says how to fix it.
        """
        await call(self.taskset.environment.check)
        await call(self.taskset.environment.start)

    async def run(self, task: Any, agents: Any) -> None:
        """Let the agent act."""
        await agents.agent.run(task)


def classes(id: str, arguments: dict[str, Any]) -> Plugin:
    """Return the classes of one environment, or without an id, of any."""
    if not id:
        return Plugin(VfTaskset, VfHarness, VfEnv)

    class BoundConfig(VfTasksetConfig):
        environment: str = id
        defaults = arguments

    # Named with its config, which verifiers reads from the bases.
    class BoundTaskset(VfTaskset, v1.Taskset[VfTask, BoundConfig]):  # type: ignore[misc]
        pass

    return Plugin(BoundTaskset, VfHarness, VfEnv)
