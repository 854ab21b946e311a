"""A vf-rl environment as a true ``gymnasium.Env``: text in, text out."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import asdict
from typing import Any, cast, get_args

import gymnasium
from gymnasium.error import ResetNeeded

from vf.bridges.gym.actions import read_action
from vf.bridges.gym.episode import ENDING, BackgroundLoop, Episode, hold, let_go
from vf.bridges.gym.spaces import UnicodeText
from vf.environments.environment import Environment, Split
from vf.environments.registry import make
from vf.evaluation.evaluate import take_tasks
from vf.runtime.calling import call
from vf.runtime.errors import (
    ConfigError,
    EnvironmentFailure,
    InfrastructureError,
    RubricError,
    did_you_mean,
)
from vf.traces.messages import Message
from vf.traces.task import Task
from vf.traces.trace import StopReason, Trace

_OPTIONS = ("task", "split")


class GymnasiumEnv(gymnasium.Env[str, str]):
    """A vf-rl environment in Gymnasium's form.

    ``gymnasium.make("vf.gym:vf/GuessNumber-v0")`` returns one. The episode is the same rollout that
    evaluation and training run, so limits, tools and rubric are the same.

    *Action*: the model's text. In an environment with tools, a JSON object in OpenAI's form of an
    assistant message (:func:`~vf.bridges.gym.actions.as_action` writes one); anything else is a
    malformed tool call there.

    *Observation*: the text of the new messages; ``info["messages"]`` has them in OpenAI's format.

    *Reward*: the rubric's, at the end; 0.0 before. Group rewards need a group, and are left out.

    *End*: ``terminated`` if the environment ended the episode, ``truncated`` if one of its limits
    did. Its ``max_tokens`` has no effect, because tokens are not counted.

    *Info*: ``task``, ``split``, ``messages``, and after ``reset`` the ``tools`` on offer (OpenAI's
    format); at the end ``stop_reason``, ``score`` with its components by name (those that did not
    apply are missing), ``step_rewards``, and ``recorded``, the environment's own records.

    Args:
        environment: A registered name, or the environment itself.
        split: The split to draw tasks from.
        num_tasks: Draw from the split's first tasks only; all by default. Needed where a split has
            no end.
        render_mode: None, or ``"ansi"``: :meth:`render` returns the conversation.
        args: Arguments of the environment, where a name is given. One that has an argument of
            the names above is made first, and given itself.

    Attributes:
        environment: The definition.
        trace: The record of the last episode that came to an end.

    Raises:
        ConfigError: If there is no such environment, or an argument is wrong.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}

    def __init__(
        self,
        environment: str | Environment,
        *,
        split: Split = "train",
        num_tasks: int | None = None,
        render_mode: str | None = None,
        **args: Any,
    ) -> None:
        if render_mode not in (None, "ansi"):
            raise ConfigError(f"render_mode must be None or 'ansi', got {render_mode!r}")
        if num_tasks is not None and num_tasks < 1:
            raise ConfigError(f"num_tasks must be at least 1, got {num_tasks}")
        if not isinstance(environment, str) and args:
            raise ConfigError(f"{', '.join(args)}: arguments go with the name of an environment")
        self.environment = (
            make(environment, **args) if isinstance(environment, str) else environment
        )
        self.render_mode = render_mode
        self.action_space = UnicodeText()
        self.observation_space = UnicodeText()
        self.trace: Trace | None = None
        self._split = _check_split(split)
        self._num_tasks = num_tasks
        self._tasks: dict[Split, dict[str, Task]] = {}
        self._loop: BackgroundLoop | None = None
        self._episode: Episode | None = None
        self._task: tuple[str, Split]
        self._turn = 0
        self._over = True

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode; one that has not ended is cancelled.

        Args:
            seed: Seeds the choice of tasks and what is random in the episodes.
            options: ``task``, the id of a task, instead of a random one; ``split``, to take it
                from another split than usual.

        Raises:
            ConfigError: If there is no such option, split or task, or something that the
                environment needs is missing.
            InfrastructureError: If the environment failed.
        """
        super().reset(seed=seed)
        task, split = self._choose(options or {})
        running = self._start()
        self._give_up(running)
        self._task, self._turn, self._over = (task.id, split), 0, True
        self._episode = Episode(self.environment, task, int(self.np_random.integers(2**62)))
        new = running.call(self._episode.advance(), timeout=self._episode.patience)
        self._raise_failure(self._episode.trace)
        self._over = False
        return _text(new), self._info(new) | {"tools": copy.deepcopy(self._episode.tools)}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Send the model's action.

        Raises:
            TypeError: If the action is not text.
            gymnasium.error.ResetNeeded: If no episode is running.
            InfrastructureError: If the environment, a tool or the rubric failed, or the rubric gave
                no reward: never a reward of 0.
        """
        if not isinstance(action, str):
            raise TypeError(f"an action is text, got {type(action).__name__}")
        if self._over or self._episode is None or self._loop is None:
            raise ResetNeeded("no episode is running: call reset() first")
        reply = read_action(str(action), turn=self._turn, tools=bool(self._episode.tools))
        self._over = True  # also if the next line raises
        new = self._loop.call(self._episode.advance(reply), timeout=self._episode.patience)
        self._turn += 1
        trace = self._episode.trace
        if trace is None:
            self._over = False
            return _text(new), 0.0, False, False, self._info(new)
        self._raise_failure(trace)
        self.trace = trace
        reward, info = _reward(trace), self._info(new) | _ending(trace)
        terminated = trace.stop_reason is StopReason.TERMINATED
        return _text(new), reward, terminated, trace.truncated, info

    def render(self) -> str | None:
        """Return the conversation so far, in render mode ``"ansi"``; None without a mode."""
        if self.render_mode is None:
            return None
        messages = [] if self._episode is None else self._episode.messages
        return "\n\n".join(f"[{message.role}]\n{_shown(message)}" for message in messages)

    def close(self) -> None:
        """Cancel the episode and release what episodes share. Can be called twice."""
        running, self._loop = self._loop, None
        self._over = True
        if running is not None:
            try:
                self._give_up(running)
            finally:
                let_go()

    def _start(self) -> BackgroundLoop:
        """Check, before the first episode, that everything that episodes need is there."""
        if self._loop is None:
            running = hold()
            try:
                running.call(_prepare(self.environment), timeout=self.environment.timeout + ENDING)
            except BaseException:
                let_go()
                raise
            self._loop = running
        return self._loop

    def _give_up(self, running: BackgroundLoop) -> None:
        episode, self._episode = self._episode, None
        if episode is not None and episode.trace is None:
            running.call(episode.cancel(), timeout=2 * ENDING)

    def _choose(self, options: dict[str, Any]) -> tuple[Task, Split]:
        for name in options:
            if name not in _OPTIONS:
                hint = did_you_mean(name, _OPTIONS)
                raise ConfigError(f"reset has no option {name!r}.{hint} It takes: task, split")
        split = _check_split(options.get("split", self._split))
        if split not in self._tasks:
            tasks = take_tasks(self.environment, split, self._num_tasks)
            self._tasks[split] = {task.id: task for task in tasks}
        tasks_by_id = self._tasks[split]
        drawn = int(self.np_random.integers(len(tasks_by_id)))
        requested = options.get("task")
        if requested is None:
            return list(tasks_by_id.values())[drawn], split
        if requested not in tasks_by_id:
            hint = did_you_mean(str(requested), tasks_by_id)
            raise ConfigError(f"the {split} split has no task {requested!r}.{hint}")
        return tasks_by_id[requested], split

    def _info(self, new: list[Message]) -> dict[str, Any]:
        task, split = self._task
        messages = [message.to_openai() for message in new]
        return {"task": task, "split": split, "messages": messages}

    def _raise_failure(self, trace: Trace | None) -> None:
        """Raise the error that ended an episode."""
        if trace is not None and trace.error is not None:
            self.trace = trace
            raise _error(trace.error.boundary)(trace.error.message)


async def _prepare(environment: Environment) -> None:
    try:
        async with asyncio.timeout(environment.timeout):
            await call(environment.check)
            await call(environment.start)
    except TimeoutError as error:
        raise EnvironmentFailure(
            f"looking whether all is there took longer than {environment.timeout:g} s"
        ) from error


def _check_split(split: str) -> Split:
    if split not in get_args(Split):
        hint = did_you_mean(str(split), get_args(Split))
        raise ConfigError(f"there is no split {split!r}.{hint} It must be 'train' or 'eval'")
    return cast(Split, split)


def _text(messages: list[Message]) -> str:
    return "\n\n".join(message.content for message in messages)


def _shown(message: Message) -> str:
    calls = [call.malformed or f"{call.name}({call.arguments})" for call in message.tool_calls]
    return "\n".join([message.content, *calls] if message.content else calls)


def _reward(trace: Trace) -> float:
    if trace.reward is None:
        raise RubricError(
            f"the rubric left the episode of task {trace.task.id!r} without a reward, which is "
            "not the same as 0"
        )
    return float(trace.reward)


def _ending(trace: Trace) -> dict[str, Any]:
    assert trace.score is not None
    return {
        "stop_reason": str(trace.stop_reason),
        "score": _applied(asdict(trace.score)),
        "step_rewards": list(trace.step_rewards),
        "recorded": copy.deepcopy(trace.info),
    }


def _applied(components: dict[str, Any]) -> dict[str, Any]:
    """Return the components without None: a vector environment would make 0 or False of it."""
    return {
        name: _applied(value) if isinstance(value, dict) else value
        for name, value in components.items()
        if value is not None
    }


def _error(boundary: str) -> type[InfrastructureError]:
    """Return the type of the errors that cross this boundary."""
    kinds = [InfrastructureError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    return next((kind for kind in kinds if kind.boundary == boundary), InfrastructureError)
