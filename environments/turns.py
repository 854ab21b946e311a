"""An episode in turns: the environment begins, the model answers, the environment steps."""

from __future__ import annotations

import math
from typing import Any

from pydantic import TypeAdapter

from vf.environments.environment import Environment, Observation, Step
from vf.environments.episode import Episode
from vf.inference.model import Conversation, LimitReached, Model, Reply, Sampling
from vf.runtime.calling import call
from vf.runtime.errors import ConfigError, EnvironmentFailure, InfrastructureError, ModelError
from vf.runtime.seeding import derive_seed
from vf.traces.messages import Message, as_messages
from vf.traces.trace import StopReason, Turn

_JSON: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])
_RETURNS = "It returns the first messages and nothing else, as self.first_messages(task) does"


async def take_turns(episode: Episode) -> StopReason:
    """Play an episode, and return why it ended.

    Raises:
        InfrastructureError: A part of it failed.
        ConfigError: The environment or its tools are set up wrongly.
    """
    return await _Turns(episode).run()


class _Turns:
    def __init__(self, episode: Episode) -> None:
        self.episode = episode
        self.environment = episode.environment
        self.trace = trace = episode.trace
        self.toolbox = self.environment.toolbox
        self.conversation = Conversation(tools=self.toolbox.schemas())
        trace.messages = self.conversation.messages
        trace.tools = self.conversation.tools
        trace.branches = self.conversation.branches
        trace.forks = self.conversation.forks
        trace.tool_events = self.environment.tool_events

    async def run(self) -> StopReason:
        environment, conversation, trace = self.environment, self.conversation, self.trace
        await self._reset()
        sampled = 0
        while True:
            budget = self.episode.sampling.max_tokens
            if environment.max_tokens is not None:
                budget = min(budget, environment.max_tokens - sampled)
            if budget < 1:
                return StopReason.MAX_TOKENS
            try:
                await self._answer(budget)
            except LimitReached as limit:
                return limit.reason
            sampled = trace.completion_tokens
            environment.turn = conversation.turn - 1
            with self.episode.phase("step"):
                step = _checked(await ask(environment, "step", conversation.messages[-1]))
            trace.step_rewards.append(float(step.reward))
            trace.info.update(step.info)
            observation = as_observed("step", step.observation)
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

    async def _reset(self) -> None:
        environment, conversation, task = self.environment, self.conversation, self.episode.task
        clock = environment.timeout
        with self.episode.phase("reset"):
            conversation.messages += as_observed("reset", await ask(environment, "reset", task))
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
            raise EnvironmentFailure(f"reset returned no messages for task {task.id!r}")

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
        episode, conversation = self.episode, self.conversation
        sampling = episode.sampling.with_(
            max_tokens=max_tokens, seed=derive_seed(episode.seed, "turn", conversation.turn)
        )
        with episode.phase("model") as timer:
            reply = await respond(episode.model, conversation, sampling)
        self.trace.turns.append(
            Turn(reply.prompt_tokens, reply.completion_tokens, reply.finish_reason, timer())
        )
        conversation.messages.append(reply.message)
        conversation.turn += 1
        episode.activity.turn = conversation.turn


async def respond(model: Model, conversation: Conversation, sampling: Sampling) -> Reply:
    """Have a model answer, and name it in whatever it raises.

    Raises:
        ModelError: It raised something of its own.
    """
    try:
        return await model.respond(conversation, sampling)
    except (InfrastructureError, ConfigError, LimitReached):
        raise
    except Exception as error:
        raise ModelError(f"the model raised {type(error).__name__}: {error}") from error


async def ask(environment: Environment, name: str, *args: Any) -> Any:
    """Call an environment's method, and put its name on whatever it raises.

    Raises:
        EnvironmentFailure: It raised something of its own.
    """
    try:
        return await call(getattr(environment, name), *args)
    except (InfrastructureError, ConfigError):
        raise
    except Exception as error:
        raise EnvironmentFailure(f"{name} raised {type(error).__name__}: {error}") from error


def as_observed(name: str, observation: Observation) -> list[Message]:
    """Return what ``reset`` or ``step`` returned as messages.

    Raises:
        EnvironmentFailure: It is none.
    """
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
    check_info(step.info)
    return step


def check_info(info: dict[str, Any]) -> dict[str, Any]:
    """Return a step's info, if the trace can record it.

    Raises:
        EnvironmentFailure: It is not a dict of JSON.
    """
    if not isinstance(info, dict):
        raise EnvironmentFailure(f"step returned {type(info).__name__} as info, not a dict")
    try:
        _JSON.dump_json(info)
    except ValueError as error:
        raise EnvironmentFailure(f"step returned info that is not JSON: {error}") from error
    return info
