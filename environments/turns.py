"""An episode in turns: the environment begins, the model answers, the environment steps."""

from __future__ import annotations

import math
from typing import Any

from pydantic import TypeAdapter

from vf.environments.contexts import context_of
from vf.environments.dialogue import Dialogues
from vf.environments.environment import Environment, Observation, Step
from vf.environments.episode import Episode
from vf.environments.making_room import make_room
from vf.environments.nested import NestedEpisodes
from vf.inference.model import LimitReached
from vf.runtime.calling import call
from vf.runtime.errors import ConfigError, EnvironmentFailure, InfrastructureError
from vf.traces.messages import Message, as_messages
from vf.traces.trace import StopReason

_JSON: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any])
_RETURNS = "It returns the first messages and nothing else, as self.first_messages(task) does"


async def take_turns(episode: Episode) -> StopReason:
    """Play an episode, and return why it ended.

    Raises:
        InfrastructureError: If a part of it failed.
        ConfigError: If the environment or its tools are set up wrongly.
    """
    turns = _Turns(episode)
    try:
        return await turns.run()
    finally:
        turns.nested.join()


class _Turns:
    def __init__(self, episode: Episode) -> None:
        self.episode = episode
        self.environment = episode.environment
        self.trace = episode.trace
        self.dialogues = Dialogues(episode)
        self.nested = NestedEpisodes(episode, self.dialogues.lineages, take_turns)
        self.environment._nested = self.nested
        self.toolbox = self.environment.toolbox
        self._offer()
        self.trace.tool_events = self.environment.tool_events

    async def run(self) -> StopReason:
        environment, trace, main = self.environment, self.trace, self.dialogues.main
        await self._reset()
        context = context_of(environment.context, f"environment {trace.environment!r}")
        count = 0
        while True:
            try:
                await make_room(context, self.dialogues, main)
                reply = await self.dialogues.answer(main)
            except LimitReached as limit:
                return limit.reason
            turn, events = main.lineage.turns[-1], len(trace.tool_events)
            environment.turn = count
            count += 1
            with self.episode.phase("step"):
                step = _checked(await ask(environment, "step", reply.message))
            for event in trace.tool_events[events:]:
                event.turn = turn
            self.nested.join()
            # Summaries have turns, too.
            trace.step_rewards += [0.0] * (turn - len(trace.step_rewards)) + [float(step.reward)]
            trace.info.update(step.info)
            observation = as_observed("step", step.observation)
            self._check_tools()
            main.conversation.messages += observation
            if step.terminated:
                return StopReason.TERMINATED
            if step.truncated:
                return StopReason.TRUNCATED
            if count >= environment.max_turns:
                return StopReason.MAX_TURNS
            if not observation:
                raise EnvironmentFailure("step neither ended the episode nor returned messages")

    async def _reset(self) -> None:
        environment, main, task = self.environment, self.dialogues.main, self.episode.task
        messages, clock = main.conversation.messages, environment.timeout
        with self.episode.phase("reset"):
            messages += as_observed("reset", await ask(environment, "reset", task))
            await environment.settle()
        self.toolbox = environment.toolbox
        self._offer()
        if environment.timeout != clock:
            raise ConfigError(
                f"environment {self.trace.environment!r}: reset set self.timeout, but the "
                "rollout's clock runs already; set it in the class or in __init__"
            )
        self.trace.prompt_messages = main.lineage.prompt_messages = len(messages)
        main.first = [*messages]
        if not messages:
            raise EnvironmentFailure(f"reset returned no messages for task {task.id!r}")

    def _offer(self) -> None:
        """Show the model the tools."""
        main, schemas = self.dialogues.main, self.toolbox.schemas()
        self.trace.tools = main.conversation.tools = main.lineage.tools = schemas

    def _check_tools(self) -> None:
        """Make sure that the tools are still those that the model was shown.

        Raises:
            ConfigError: If they were changed in mid-episode.
        """
        toolbox = self.environment.toolbox
        if toolbox is not self.toolbox and toolbox.schemas() != self.trace.tools:
            raise ConfigError(
                f"environment {self.trace.environment!r}: self.tools was changed after reset; the "
                "model has seen an episode's tools by then. Set them in reset, and have a "
                "tool that cannot be used yet raise vf.ToolError"
            )


async def ask(environment: Environment, name: str, *args: Any) -> Any:
    """Call an environment's method, and put its name on whatever it raises.

    Raises:
        EnvironmentFailure: If it raised something of its own.
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
        EnvironmentFailure: If it is not one.
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
        EnvironmentFailure: If it is not a dict of JSON.
    """
    if not isinstance(info, dict):
        raise EnvironmentFailure(f"step returned {type(info).__name__} as info, not a dict")
    try:
        _JSON.dump_json(info)
    except ValueError as error:
        raise EnvironmentFailure(f"step returned info that is not JSON: {error}") from error
    return info
