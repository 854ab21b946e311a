"""The numbers of a held-out evaluation, in all and by environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vf.evaluation.evaluate import Evaluation
from vf.runtime.errors import TrainingError
from vf.trainer.run.metrics import Metrics, by_environment
from vf.trainer.run.run_environment import RunEnvironment
from vf.trainer.watching.metrics import branch_metrics, pass_metrics, trace_metrics


def evaluation_metrics(
    results: Mapping[str, Evaluation], members: Sequence[RunEnvironment]
) -> Metrics:
    """Return what an evaluation found: means over all held-out tasks, and over each environment's.

    Args:
        results: By the environment's name.
        members: The environments.

    Raises:
        TrainingError: If not one rollout could be scored.
    """
    counts = {member.name: member.args.eval_rollouts_per_example for member in members}
    passed = {name: pass_metrics(result.traces, counts[name]) for name, result in results.items()}
    tasks = {name: len(result.traces) // counts[name] for name, result in results.items()}
    total = sum(tasks.values())
    shared = set.intersection(*(set(metrics) for metrics in passed.values()))
    overall = {
        key: sum(metrics[key] * (tasks[name] / total) for name, metrics in passed.items())
        for key in sorted(shared)
    }
    whole = Evaluation([trace for result in results.values() for trace in result.traces])
    if all(trace.reward is None for trace in whole.traces):
        raise TrainingError("not one rollout of the held-out evaluation could be scored")
    by_name = {name: _metrics(result) | _named(passed[name]) for name, result in results.items()}
    return by_environment(by_name) | _metrics(whole) | _named(overall)


def _metrics(result: Evaluation) -> Metrics:
    scored = [trace for trace in result.traces if trace.reward is not None]
    measured = _named(trace_metrics(scored) | branch_metrics(scored)) if scored else {}
    return measured | {
        "eval/rollouts/scored": len(scored),
        "eval/rollouts/failed": result.errors,
        "eval/rollouts/unscored": result.unscored,
    }


def _named(metrics: Metrics) -> Metrics:
    return {f"eval/{name}": value for name, value in metrics.items()}
