"""The classes that tinker-cookbook's trainer is given. Imports tinker-cookbook."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import chz
import tinker
from tinker_cookbook.rl import types

from vf.bridges.tinker_cookbook.played import PlayedEpisode
from vf.environments.environment import Environment
from vf.inference.rendering.renderer import Renderer
from vf.rubrics.group import score_group
from vf.runtime.errors import EnvironmentFailure, RubricError
from vf.runtime.seeding import derive_seed
from vf.traces.task import Task
from vf.traces.trace import StopReason, Trace

# The cookbook's names of why an episode ended; others are ours.
_STOPS = {
    StopReason.TERMINATED: "completed",
    StopReason.MAX_SEQ_LEN: "context_overflow",
}


class VfEnv(types.Env):  # type: ignore[misc]
    """One episode.

    Args:
        episode: The episode, which has not begun.
        stops: Ids of the tokens that end an answer.

    Attributes:
        episode: As given.
    """

    def __init__(self, episode: PlayedEpisode, stops: list[int]) -> None:
        self.episode = episode
        self._stops = stops

    async def initial_observation(self) -> Any:
        """Return the first prompt, and what ends an answer.

        Raises:
            InfrastructureError: If a part of the episode failed.
        """
        prompt = await self.episode.begin()
        if prompt is not None:
            return tinker.ModelInput.from_ints(prompt), self._stops
        return types.InitialObservationOverflow(
            _reward(self.episode.trace), _metrics(self.episode.trace)
        )

    async def step(self, action: list[int], *, extra: Any = None) -> Any:
        """Answer the prompt, and return the next one, or the reward.

        Raises:
            InfrastructureError: If a part of the episode failed.
        """
        cut = (extra or {}).get("stop_reason") == "length"
        prompt = await self.episode.answer(list(action), cut=cut)
        over = prompt is None
        return types.StepResult(
            reward=_reward(self.episode.trace) if over else 0.0,
            episode_done=over,
            next_observation=tinker.ModelInput.from_ints(prompt or []),
            next_stop_condition=self._stops,
            metrics=_metrics(self.episode.trace) if over else {},
        )


@dataclass
class VfEnvGroupBuilder(types.EnvGroupBuilder):  # type: ignore[misc]
    """The rollouts of one task.

    Attributes:
        environment: The definition.
        renderer: Chat template and parser.
        task: The task.
        seeds: Of the rollouts.
        max_prompt_len: Most tokens of a prompt, which leave room for an answer.
    """

    environment: Environment
    renderer: Renderer
    task: Task
    seeds: list[int]
    max_prompt_len: int
    _envs: list[VfEnv] = field(default_factory=list, repr=False)

    async def make_envs(self) -> Sequence[VfEnv]:
        """Return the episodes, none of which has begun."""
        envs = [
            VfEnv(
                PlayedEpisode(
                    self.environment,
                    self.task,
                    self.renderer,
                    max_prompt_len=self.max_prompt_len,
                    seed=seed,
                ),
                list(self.renderer.stop_token_ids),
            )
            for seed in self.seeds
        ]
        self._envs += envs
        return envs

    async def compute_group_rewards(
        self, trajectory_group: list[Any], env_group: Sequence[Any]
    ) -> list[tuple[float, dict[str, float]]]:
        """Return what group rewards change; nothing without any.

        Raises:
            InfrastructureError: If a group reward failed.
        """
        nothing: list[tuple[float, dict[str, float]]] = [(0.0, {}) for _ in trajectory_group]
        traces = [env.episode.trace for env in env_group]
        if not self.environment.rubric.group_rewards or None in traces:
            return nothing
        before = [_reward(trace) for trace in traces]
        await score_group(self.environment.rubric, traces, self.environment.timeout)
        return [
            (_reward(trace) - earlier, _metrics(trace))
            for trace, earlier in zip(traces, before, strict=True)
        ]

    async def cleanup(self) -> None:
        """End the episodes that are still played."""
        envs, self._envs = self._envs, []
        for env in envs:
            await env.episode.stop()

    def logging_tags(self) -> list[str]:
        """Return the environment's name."""
        return [self.environment.id or type(self.environment).__name__]


@dataclass
class VfDataset(types.RLDataset):  # type: ignore[misc]
    """Batches of tasks.

    Attributes:
        builders: A builder of each group, in the order of training.
        groups_per_batch: Groups in a batch; what is left is left out.
    """

    builders: list[VfEnvGroupBuilder] = field(repr=False)
    groups_per_batch: int

    @classmethod
    def of_tasks(
        cls,
        environment: Environment,
        renderer: Renderer,
        tasks: Sequence[Task],
        *,
        groups_per_batch: int,
        group_size: int,
        epochs: int,
        max_prompt_len: int,
        seed: int,
    ) -> VfDataset:
        """Return the batches of tasks; see :func:`~vf.to_tinker`."""
        order: list[Task] = []
        for epoch in range(epochs):
            shuffled = list(tasks)
            if group_size > 1:
                random.Random(derive_seed(seed, "order", epoch)).shuffle(shuffled)
            order += shuffled
        builders = [
            VfEnvGroupBuilder(
                environment,
                renderer,
                task,
                [derive_seed(seed, index, number) for number in range(group_size)],
                max_prompt_len,
            )
            for index, task in enumerate(order)
        ]
        return cls(builders, groups_per_batch)

    def get_batch(self, index: int) -> Sequence[VfEnvGroupBuilder]:
        """Return the groups of a batch."""
        start = index * self.groups_per_batch
        return self.builders[start : start + self.groups_per_batch]

    def __len__(self) -> int:
        return len(self.builders) // self.groups_per_batch


@chz.chz
class VfDatasetBuilder(types.RLDatasetBuilder):  # type: ignore[misc]
    """Returns the datasets, which are made already."""

    train: VfDataset
    test: VfDataset | None

    async def __call__(self) -> tuple[VfDataset, VfDataset | None]:
        """Return the training and the test dataset."""
        return self.train, self.test


def _reward(trace: Trace | None) -> float:
    """Return the reward of an episode that has ended.

    Raises:
        InfrastructureError: If there is none.
    """
    assert trace is not None
    if (error := trace.error) is not None:
        raise EnvironmentFailure(f"task {trace.task.id}: {error.boundary}: {error.message}")
    if trace.reward is None:
        raise RubricError(f"task {trace.task.id}: the rubric could not score it")
    return trace.reward


def _metrics(trace: Trace | None) -> dict[str, float]:
    """Return what a score is made of, by the names of ``metrics.jsonl``, and why it ended."""
    assert trace is not None
    assert trace.score is not None
    score = trace.score
    kinds: dict[str, Mapping[str, float | None]] = {
        "penalty": score.penalties,
        "gate": score.gates,
        "part": score.parts,
        "metric": score.metrics,
    }
    named = {
        f"{kind}/{name}": value for kind, values in kinds.items() for name, value in values.items()
    }
    named |= {"reward/outcome": score.outcome, "turns": len(trace.turns)}
    metrics = {name: float(value) for name, value in named.items() if value is not None}
    if (why := trace.stop_reason) is not None:
        metrics[f"stop/{_STOPS.get(why, why.value)}"] = 1.0
    return metrics
