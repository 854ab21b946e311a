"""An environment as keyword arguments of TRL's `GRPOTrainer`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, count
from statistics import fmean
from typing import Any, Literal, get_args

from vf.bridges.trl.episodes import Episode, Home, environment_class
from vf.bridges.trl.rollouts import rollout_function
from vf.environments.agent import AgentEnvironment
from vf.environments.environment import Environment, Split
from vf.environments.multi_agent import MultiAgentEnvironment
from vf.environments.roles import check_one_reward
from vf.evaluation.evaluate import take_tasks
from vf.runtime.calling import call, carry_out
from vf.runtime.errors import ConfigError
from vf.runtime.extras import check_version, load
from vf.traces.task import Task
from vf.traces.trace import Trace

Loop = Literal["auto", "trl", "vf"]


def to_trl(environment: Environment, *, loop: Loop = "auto", seed: int = 0) -> dict[str, Any]:
    """Return an environment as keyword arguments of TRL's `GRPOTrainer`.

    Example::

        trainer = GRPOTrainer(model="...", args=GRPOConfig(...), **vf.to_trl(vf.make("calculator")))

    Always among them are ``train_dataset``, ``eval_dataset`` (if the environment has an eval
    split) and ``reward_funcs``: our rubric, which gives a finished conversation the reward that it
    has here, and None to one that an infrastructure failure has ended, which TRL leaves out of
    the group's mean and of the gradient.

    Args:
        environment: The definition.
        loop: The loop that carries out the episodes. ``"trl"``: TRL's own loop of tool calls; for
            an environment with tools there is an ``environment_factory``, whose methods they are.
            It takes environments that leave ``reset`` and ``step`` as they are. ``"vf"``: our own,
            as a ``rollout_func``; it takes any environment, in one process. ``"auto"``: TRL's where
            it can.
        seed: Seed of the episodes.

    Raises:
        ConfigError: If TRL is missing or of another version; TRL cannot do what the environment
            needs; or the environment's own :meth:`~vf.Environment.check` fails.
    """
    load("trl", "trl")
    check_version("trl", "trl", "1.16", "2")
    name = environment.id or type(environment).__name__
    if loop not in get_args(Loop):
        raise ConfigError(f"to_trl: loop must be one of {', '.join(get_args(Loop))}, got {loop!r}")
    if environment.rubric.group_rewards:
        raise ConfigError(
            f"to_trl: {name} has group rewards, which need all rollouts of a task together; TRL "
            "may score them in different processes. Leave them out of its rubric"
        )
    kind = type(environment)
    parts = ("reset", "step", "run_tools")
    own = [part for part in parts if getattr(kind, part) is not getattr(Environment, part)]
    own += ["loop"] if isinstance(environment, AgentEnvironment | MultiAgentEnvironment) else []
    if own and loop == "trl":
        raise ConfigError(
            f"to_trl: {name} has its own {' and '.join(own)}, which TRL's loop of tool calls does "
            "not call; use loop='vf'"
        )
    carry_out(call(environment.check))
    tasks = {split: _tasks(environment, split) for split in ("train", "eval")}
    check_one_reward(environment, chain.from_iterable(tasks.values()), "TRL")
    home = Home(
        environment,
        name,
        {f"{split}/{task.id}": task for split, entries in tasks.items() for task in entries},
        seed,
    )
    in_trl = loop == "trl" or (loop == "auto" and not own)
    arguments: dict[str, Any] = {
        f"{split}_dataset": _dataset(home, split, entries, in_prompt=not in_trl)
        for split, entries in tasks.items()
        if entries
    }
    if not in_trl:
        return arguments | {
            "rollout_func": rollout_function(home),
            "reward_funcs": [reward_of_traces(home)],
        }
    if environment.episode(0).toolbox.tools:
        arguments["environment_factory"] = environment_class(home)
    return arguments | {"reward_funcs": [reward_of_completions(home)]}


def _tasks(environment: Environment, split: Split) -> list[Task]:
    if split == "eval" and not any(True for _ in environment.tasks(split)):
        return []
    return take_tasks(environment, split)


def _dataset(home: Home, split: str, tasks: Iterable[Task], *, in_prompt: bool) -> Any:
    """Return the tasks as a dataset with the columns ``prompt`` and ``task``.

    Args:
        home: The environment.
        split: The split's name.
        tasks: Its tasks.
        in_prompt: Write the task into the prompt's last message, too: a rollout function is given
            nothing but the prompts.
    """
    rows = []
    for task in tasks:
        messages = home.environment.first_messages(task)
        if any(message.images for message in messages):
            raise ConfigError(
                f"to_trl: the prompt of task {task.id!r} holds an image, and what TRL gets is text"
            )
        prompt = [message.to_openai() for message in messages]
        key = f"{split}/{task.id}"
        if in_prompt:
            prompt[-1]["task"] = key
        rows.append({"prompt": prompt, "task": key})
    return load("datasets", "trl").Dataset.from_list(rows)


LogMetric = Callable[[str, float], None]


def reward_of_completions(home: Home) -> Callable[..., Any]:
    """Return the reward function for conversations that TRL has carried out."""
    numbers = count()

    async def reward(
        prompts: Sequence[Any],
        completions: Sequence[Any],
        completion_ids: Sequence[Sequence[int]],
        task: Sequence[str] | None = None,
        environments: Sequence[Any] | None = None,
        log_metric: LogMetric | None = None,
        **_: Any,
    ) -> list[float | None]:
        if environments is None:
            keys: Sequence[str | None] = task or [None] * len(prompts)
            episodes = [Episode(home, key, next(numbers)) for key in keys]
        else:
            episodes = [environment._episode for environment in environments]
        traces = await asyncio.gather(
            *(
                episode.finish(prompt, completion, len(ids))
                for episode, prompt, completion, ids in zip(
                    episodes, prompts, completions, completion_ids, strict=True
                )
            )
        )
        return rewards_of(traces, log_metric)

    reward.__name__ = home.name
    return reward


def reward_of_traces(home: Home) -> Callable[..., list[float | None]]:
    """Return the reward function for the traces of our own rollout loop, which has scored them."""

    def reward(
        trace: Sequence[Trace], log_metric: LogMetric | None = None, **_: Any
    ) -> list[float | None]:
        return rewards_of(trace, log_metric)

    reward.__name__ = home.name
    return reward


def rewards_of(traces: Sequence[Trace], log_metric: LogMetric | None) -> list[float | None]:
    """Return the rewards; let TRL log their parts and the share of failed rollouts."""
    if log_metric is not None:
        parts: dict[str, list[float]] = {}
        for trace in traces:
            if trace.score is not None:
                named = {"outcome": trace.score.outcome} | trace.score.penalties
                for name, value in (named | trace.score.metrics).items():
                    if value is not None:
                        parts.setdefault(name, []).append(value)
        for name, values in parts.items():
            log_metric(f"score/{name}", fmean(values))
        log_metric("score/errors", fmean(trace.error is not None for trace in traces))
    return [trace.reward for trace in traces]
