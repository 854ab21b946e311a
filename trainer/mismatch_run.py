"""`vf-rl mismatch run.toml`: one step's rollouts, computed by the trainer as well, and compared."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from vf.environments.environment import Environment
from vf.runtime.errors import ConfigError
from vf.trainer.learning.batches.batch import Sample
from vf.trainer.learning.model.rounding import rounding_gaps
from vf.trainer.preflight import preflight
from vf.trainer.processes.launch import is_elsewhere, processes_to_launch
from vf.trainer.rl_trainer import RLTrainer
from vf.trainer.run.run_folder import RunFolder
from vf.trainer.settings.config import Config
from vf.trainer.tinker_backend.policy import local_policy
from vf.trainer.watching.mismatch import Mismatch, Tokens, compare

MOST_TOKENS = 8192  # of the branches that are computed once for each kind of layer


def measure_config(
    config: Config,
    say: Callable[[str], None] = lambda _: None,
    environments: Mapping[str, Environment] | None = None,
) -> Mismatch:
    """Measure what engine and trainer differ by with the weights that a run would begin with.

    Args:
        config: The run's settings.
        say: Called with what is being done.
        environments: The environments, as for :func:`~vf.trainer.preflight.preflight`.

    Raises:
        ConfigError: If a setting is wrong, the run is of several processes or on a cluster, or no
            token was sampled.
        TrainingError: If too many rollouts failed.
        EngineError: If the engine did not start, or died.
    """
    if is_elsewhere(config) or processes_to_launch(config) > 1:
        raise ConfigError(
            "vf-rl mismatch measures with one trainer process on this machine: add --set "
            "trainer.gpus=1, and leave out cluster and accelerate_config; of a run of several "
            "processes, give its folder"
        )
    plan = preflight(config.with_args(max_steps=1), say, environments)
    with tempfile.TemporaryDirectory(prefix=".mismatch-") as scratch:
        folder = RunFolder(Path(scratch) / "mismatch")
        folder.create()
        try:
            say("loading the model ...")
            with RLTrainer(plan, folder) as trainer:
                return measure_step(trainer, say)
        finally:
            folder.close()


def measure_step(trainer: RLTrainer, say: Callable[[str], None] = lambda _: None) -> Mismatch:
    """Sample the rollouts of a trainer's first step, and compare; nothing is trained.

    Args:
        trainer: A trainer that has not trained yet.
        say: Called with what is being done.

    Raises:
        ConfigError: If no token was sampled.
        TrainingError: If too many rollouts failed.
        EngineError: If the engine died.
    """
    say("sampling a step's rollouts ...")
    trainer.collector.open(1, version=0)
    samples = [
        Sample(branch, 0.0, temperature=trainer.plan.args_of(group.environment).temperature)
        for group in trainer.collector.arriving(1)
        for trace in group.traces
        for branch in trace.branches
        if any(branch.loss_mask)
    ]
    if not samples:
        raise ConfigError("no token was sampled in the first step's rollouts: see `vf-rl eval`")
    say("computing the same tokens ...")
    policy = local_policy(trainer.policy, "vf-rl mismatch")
    with trainer.learner.training():
        logprobs = policy.sample_logprobs(samples)
        branches = [_tokens(*pair) for pair in zip(samples, logprobs, strict=True)]
        rounding = {} if trainer.args.load_in_4bit else _rounding(policy.weights.module, samples)
    return compare(branches, rounding)


def _tokens(sample: Sample, logprobs: torch.Tensor) -> Tokens:
    branch = sample.branch
    trained = torch.tensor(branch.loss_mask, dtype=torch.bool).nonzero()[:, 0]
    sampled = torch.tensor(branch.logprobs, dtype=torch.float64)[trained]
    return Tokens(logprobs.double()[trained] - sampled, sampled.exp(), trained, len(branch))


def _rounding(model: torch.nn.Module, samples: Sequence[Sample]) -> dict[str, torch.Tensor]:
    """Return what bfloat16 changes, on the first samples of one temperature."""
    first = samples[0].temperature
    some, left = [samples[0].branch], MOST_TOKENS - len(samples[0])
    for sample in samples[1:]:
        if sample.temperature == first and len(sample) <= left:
            some.append(sample.branch)
            left -= len(sample)
    return rounding_gaps(model, some, first or 1.0)
