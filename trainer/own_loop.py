"""The parts of a custom training loop apart from :class:`~vf.trainer.learner.Learner`.

:func:`rollouts` gives the traces of some tasks, :func:`samples` makes of them what is trained on.
Importing this module loads no torch.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from vf.environments.environment import Environment
from vf.evaluation.evaluate import evaluate
from vf.inference.model import Model, Sampling
from vf.runtime.errors import ConfigError, TrainingError
from vf.runtime.toml import checked
from vf.traces.task import Task
from vf.traces.trace import Failure, Trace
from vf.trainer.collecting.step_rollouts import check_failures
from vf.trainer.run.group import Group
from vf.trainer.settings.config import TrainerArgs

if TYPE_CHECKING:
    import torch

    from vf.trainer.learning.batches.batch import Sample

log = logging.getLogger(__name__)


async def rollouts(
    environment: Environment,
    model: Model,
    tasks: Sequence[Task],
    *,
    rollouts_per_example: int = 8,
    max_concurrent: int = 64,
    max_error_rate: float = 0.25,
    sampling: Sampling | None = None,
    seed: int | None = None,
) -> list[Trace]:
    """Let a model act on some tasks, several times on each, and score what it does.

    Example::

        traces = await vf.rollouts(env, learner.sampler(), random.sample(tasks, 8))

    Args:
        environment: The environment in which it acts.
        model: The model that acts.
        tasks: The problems of this step.
        rollouts_per_example: Rollouts of each.
        max_concurrent: Rollouts in flight concurrently.
        max_error_rate: Share of the rollouts that may fail.
        sampling: The sampling settings; by default the model's own. A learner's sampler uses
            its settings, and the learner computes at that temperature.
        seed: The same seed gives the same rollouts, as far as the model can. By default each call
            draws one from :mod:`random`, which a learner seeds.

    Returns:
        The traces, grouped by task. Some may have failed (``Trace.error``): they have no reward.

    Raises:
        ConfigError: If there are no tasks, a setting is out of range, or something that the
            environment needs is missing.
        TrainingError: If more rollouts failed than ``max_error_rate`` allows; names the cause.
    """
    if not 0.0 <= max_error_rate <= 1.0:
        raise ConfigError(f"max_error_rate = {max_error_rate}: it is a share, from 0 to 1")
    evaluated = await evaluate(
        environment,
        model,
        tasks=list(tasks),
        rollouts_per_example=rollouts_per_example,
        max_concurrent=max_concurrent,
        sampling=sampling,
        seed=random.randrange(2**63) if seed is None else seed,
    )
    failed = [trace for trace in evaluated.traces if trace.error is not None]
    check_failures(failed, len(evaluated.traces), max_error_rate)
    for trace, error in _failures(failed):
        log.warning("task %s failed, in the %s: %s", trace.task.id, error.boundary, error.message)
    return evaluated.traces


def samples(
    traces: Iterable[Trace],
    advantages: str | Callable[[torch.Tensor], Sequence[float] | torch.Tensor] = "mean",
    *,
    credit: str = "trace",
    credit_discount: float = 1.0,
    mask_truncated: bool = False,
) -> list[Sample]:
    """Return the training data of traces: one sample for each of their branches.

    The traces of one task, by its id, are a group. Those without a reward are not learned from. A
    group whose rewards are all equal has no learning signal and is left out, so that the list may
    be empty; with a function of your own, one whose advantages are all 0.

    Args:
        traces: The rollouts of one step, in any order.
        advantages: The comparison of a rollout with the others of its group, by the names of
            ``trainer.args.advantage``; or a function from the rewards of a group, a float64 tensor
            ``[n]``, to its n advantages.
        credit: ``trace``: every token gets the rollout's advantage; ``turn``: that of what was
            earned from its turn on.
        credit_discount: With ``turn``: discount of a reward per turn.
        mask_truncated: Train no token of a rollout that a limit ended or whose answer was cut; its
            reward still counts in its group.

    Raises:
        ConfigError: If a setting is wrong; two tasks have one id; the traces hold no tokens; or
            every group has a single rollout, so that there is nothing to compare it with.
        TrainingError: If not one trace has a reward; names the most frequent cause.
    """
    from vf.trainer.learning.batches.batch import build_samples

    own = advantages if callable(advantages) else None
    named: dict[str, Any] = {} if own else {"advantage": advantages}
    named |= {"credit": credit, "credit_discount": credit_discount}
    args = checked(TrainerArgs, named | {"mask_truncated": mask_truncated})
    groups: dict[str, Group] = {}
    for trace in traces:
        group = groups.setdefault(trace.task.id, Group(trace.task))
        if group.task != trace.task:
            raise ConfigError(
                f"two tasks have the id {trace.task.id!r}, and one's rollouts would be compared "
                "with the other's: give each an id of its own"
            )
        group.traces.append(trace)
    for group in groups.values():
        group.take(group.traces)
    _check([*groups.values()], single=own is not None)
    return [sample for batch in build_samples([*groups.values()], args, own) for sample in batch]


def _check(groups: Sequence[Group], *, single: bool) -> None:
    """Raise an error where nothing can be learned, whatever the rewards were."""
    scored = [trace for group in groups for trace in group.traces]
    if groups and not scored:
        failed = [trace for group in groups for trace in group.failed]
        why = "the rubric scored none"
        if causes := Counter(f"{e.boundary}: {e.message}" for _, e in _failures(failed)):
            [(cause, count)] = causes.most_common(1)
            why = f"most often ({count}×), in the {cause}"
        raise TrainingError(f"not one trace has a reward; {why}")
    if scored and not any(trace.branches for trace in scored):
        raise ConfigError(
            "the traces hold no tokens to train on: they are of a model that is asked for text. "
            "Sample them with Learner.sampler()"
        )
    if scored and not single and all(len(group.traces) == 1 for group in groups if group.traces):
        raise ConfigError(
            "every task has a single rollout, and an advantage is relative to the others of its "
            "task: set rollouts_per_example in vf.rollouts, or pass vf.samples a function as "
            "`advantages`"
        )


def _failures(traces: Sequence[Trace]) -> list[tuple[Trace, Failure]]:
    return [(trace, trace.error) for trace in traces if trace.error is not None]
