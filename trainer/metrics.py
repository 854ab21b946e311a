"""The numbers of one step, as they stand in `metrics.jsonl`."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev

from vf.traces.trace import Trace
from vf.trainer.batch import Group
from vf.trainer.policy import UpdateStats

Metrics = dict[str, float]


def rollout_metrics(groups: Sequence[Group]) -> Metrics:
    """Return what the rollouts of a step say. Failed rollouts are counted, and in no mean."""
    traces = [trace for group in groups for trace in group.traces]
    failed = sum(len(group.failed) for group in groups)
    waits = [
        trace.timing["sandbox"]
        for group in groups
        for trace in [*group.traces, *group.failed]
        if "sandbox" in trace.timing
    ]
    out: Metrics = {
        "rollouts/scored": len(traces),
        "rollouts/failed": failed,
        "groups/uniform_fraction": fmean(group.uniform for group in groups),
    }
    if waits:
        out |= {"sandbox/wait_s_mean": fmean(waits), "sandbox/wait_s_max": max(waits)}
    if not traces:
        return out
    calls = [event for trace in traces for event in trace.tool_events]
    out |= trace_metrics(traces)
    out |= {
        "turns/mean": fmean(len(trace.turns) for trace in traces),
        "tool_calls/mean": len(calls) / len(traces),
        "tool_calls/error_rate": fmean(c.kind != "ok" for c in calls) if calls else 0.0,
        "tokens/completion_mean": fmean(trace.completion_tokens for trace in traces),
        "tokens/context_mean": fmean(sum(map(len, trace.branches)) for trace in traces),
        "tokens/sampled": sum(trace.completion_tokens for trace in traces),
        "truncated_fraction": fmean(trace.truncated for trace in traces),
        "cut_turns_fraction": fmean(
            turn.finish_reason == "length" for trace in traces for turn in trace.turns
        ),
        "forks_per_rollout": fmean(len(trace.forks) for trace in traces),
    }
    return out


def trace_metrics(traces: Sequence[Trace]) -> Metrics:
    """Return reward, success and every component of the score, over scored traces."""
    scores = [trace.score for trace in traces if trace.score is not None]
    rewards = [score.reward for score in scores]
    out: Metrics = {
        "reward/mean": fmean(rewards),
        "reward/std": pstdev(rewards),
        "success_rate": fmean(score.outcome >= 1.0 for score in scores),
        "reward/outcome": fmean(score.outcome for score in scores),
    }
    for name in scores[0].penalties:
        out[f"penalty/{name}"] = fmean(score.penalties[name] for score in scores)
    for name in scores[0].metrics:
        out[f"metric/{name}"] = fmean(score.metrics[name] for score in scores)
    return out


def update_metrics(updates: Sequence[UpdateStats]) -> Metrics:
    """Return the training side, token-weighted over a step's optimizer steps."""
    tokens = sum(update.tokens for update in updates)
    if not tokens:
        return {"tokens/trained": 0}

    def mean(values: Sequence[float]) -> float:
        return sum(v * u.tokens for v, u in zip(values, updates, strict=True)) / tokens

    return {
        "loss": mean([update.loss for update in updates]),
        "grad_norm": mean([update.grad_norm for update in updates]),
        "kl_sample_train_v1": mean([update.kl_v1 for update in updates]),
        "kl_sample_train_v2": mean([update.kl_v2 for update in updates]),
        "entropy": mean([update.entropy for update in updates]),
        "tokens/trained": tokens,
    }
