"""Our rubric as a reward function of TRL's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from statistics import fmean
from typing import Any

from vf.bridges.trl.episodes import Episode, Home
from vf.traces.trace import Trace

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
        return told(traces, log_metric)

    reward.__name__ = home.name
    return reward


def reward_of_traces(home: Home) -> Callable[..., list[float | None]]:
    """Return the reward function for the traces of our own rollout loop, which has scored them."""

    def reward(
        trace: Sequence[Trace], log_metric: LogMetric | None = None, **_: Any
    ) -> list[float | None]:
        return told(trace, log_metric)

    reward.__name__ = home.name
    return reward


def told(traces: Sequence[Trace], log_metric: LogMetric | None) -> list[float | None]:
    """Return the rewards, and have TRL log what they are made of, and how many rollouts failed."""
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
