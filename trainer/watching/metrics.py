"""The numbers of one step, as they are in `metrics.jsonl`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev

from vf.evaluation.tally import Tally
from vf.traces.branching import Branching
from vf.traces.simulated_users import user_of
from vf.traces.trace import Score, Trace
from vf.trainer.learning.advantages.turn_credit import was_cut
from vf.trainer.learning.batches.batch import group_teaches, overlong
from vf.trainer.learning.objective import UpdateStats
from vf.trainer.run.group import Group
from vf.trainer.run.metrics import Metrics, by_environment
from vf.trainer.settings.config import TrainerArgs
from vf.trainer.watching.missing_rewards import StepVoids


def step_metrics(
    step: int,
    groups: Sequence[Group],
    updates: Sequence[UpdateStats],
    times: Mapping[str, float],
    args: TrainerArgs,
    args_of: Mapping[str, TrainerArgs] | None = None,
) -> Metrics:
    """Return what a training step's rollouts, updates and time say.

    Where there are several environments, what the rollouts say is also there of each by itself, as
    ``env/NAME/...``.

    Args:
        step: The step's number, from 1.
        groups: All that it waited for.
        updates: The step's optimizer steps.
        times: Seconds by part, with ``train`` and ``total``.
        args: ``[trainer.args]``.
        args_of: The same by the environment's name, as they are there.
    """
    seconds, args_of = times["total"], args_of or {"": args}
    own = {name: [group for group in groups if group.environment == name] for name in args_of}
    measured = {
        name: rollout_metrics(own_groups)
        | signal_metrics(own_groups, step - 1, seconds, args)
        | shaping_metrics(own_groups, args_of)
        for name, own_groups in own.items()
        if own_groups and len(own) > 1
    }
    metrics: Metrics = {
        **by_environment(measured, len(args_of)),
        **rollout_metrics(groups),
        **signal_metrics(groups, step - 1, seconds, args),
        **shaping_metrics(groups, args_of),
        **update_metrics(
            updates,
            reference=bool(args.kl_penalty_coef),
            corrected=args.importance_sampling_mode not in (None, "off"),
            routed=args.router_aux_loss_coef > 0,
            replayed=args.router_replay != "off",
            taught=args.teacher_loss if args.teacher_model is not None else None,
            observing=args.observation_loss_coef > 0,
        ),
        **{f"time/{name}": value for name, value in times.items()},
    }
    metrics["tokens_per_s/generate"] = metrics.get("tokens/sampled", 0.0) / seconds
    processed = sum(update.processed_tokens for update in updates)
    metrics["tokens_per_s/train"] = processed / times["train"]
    return metrics


def rollout_metrics(groups: Sequence[Group]) -> Metrics:
    """Return what the rollouts of a step say.

    Those that failed, and those that the rubric did not score, are counted, and in no mean but
    ``reward/voids_as_zero``, where each counts as 0.
    """
    traces = [trace for group in groups for trace in group.traces]
    failed = sum(len(group.failed) for group in groups)
    missing = StepVoids.of(groups)
    waits = [
        trace.timing["sandbox"]
        for group in groups
        for trace in [*group.traces, *group.failed]
        if "sandbox" in trace.timing
    ]
    out: Metrics = {
        "rollouts/scored": len(traces),
        "rollouts/failed": failed,
        "rollouts/unscored": sum(len(group.unscored) for group in groups),
        "voids/share": missing.share,
        "voids/tasks": len(missing.tasks),
        "groups/uniform_fraction": fmean(group.uniform for group in groups),
    }
    if waits:
        out |= {"sandbox/wait_s_mean": fmean(waits), "sandbox/wait_s_max": max(waits)}
    out |= user_metrics([trace for group in groups for trace in [*group.traces, *group.failed]])
    if not traces:
        return out
    calls = [event for trace in traces for event in trace.tool_events]
    out |= trace_metrics(traces)
    out["reward/voids_as_zero"] = out["reward/mean"] * (1.0 - missing.share)
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
    }
    for name in sorted({name for trace in traces for name in trace.roles}):
        played = [trace.roles[name] for trace in traces if name in trace.roles]
        out[f"roles/{name}/reward_mean"] = fmean(role.reward for role in played)
        out[f"roles/{name}/answers_mean"] = fmean(role.answers for role in played)
    return out | branch_metrics(traces)


def user_metrics(traces: Sequence[Trace]) -> Metrics:
    """Return what the simulated users took, failed rollouts included; nothing without any."""
    traces = [trace for trace in traces if user_of(trace) is not None]
    users = [user for trace in traces if (user := user_of(trace)) is not None]
    if not users:
        return {}
    return {
        "user/requests": sum(user.requests for user in users),
        "user/prompt_tokens": sum(user.prompt_tokens for user in users),
        "user/completion_tokens": sum(user.completion_tokens for user in users),
        "user/wait_s_mean": fmean(trace.timing.get("user", 0.0) for trace in traces),
    }


def branch_metrics(traces: Sequence[Trace]) -> Metrics:
    """Return how many branches a rollout has, and its forks, in all and of each kind there is."""
    branching = Branching.of(traces)
    return {
        "branches_per_rollout": branching.per_rollout,
        "forks_per_rollout": branching.forks.total() / max(1, branching.rollouts),
        **{f"forks/{kind}": count / branching.rollouts for kind, count in branching.forks.items()},
    }


def signal_metrics(
    groups: Sequence[Group], version: int, seconds: float, args: TrainerArgs
) -> Metrics:
    """Return how much of a step teaches, and how old it is.

    ``staleness`` is how many optimizer versions behind a trained token was sampled; effective
    groups are those whose rewards have spread, or all if there is a teacher.

    Args:
        groups: The step's.
        version: The version of the weights that are trained.
        seconds: Wall time of the step.
        args: ``[trainer.args]``.
    """
    effective = sum(group_teaches(group, args) for group in groups)
    out: Metrics = {
        "groups/count": len(groups),
        "groups/effective": effective,
        "groups_per_s/effective": effective / seconds,
        "rollouts/stopped": sum(group.stopped for group in groups),
    }
    ages = Counter(
        version - sampled
        for group in groups
        if group_teaches(group, args)
        for trace in group.traces
        for branch in trace.branches
        for sampled in branch.weight_version
        if sampled >= 0
    )
    if ages:
        out["staleness/mean"] = sum(age * n for age, n in ages.items()) / ages.total()
        out["staleness/max"] = max(ages)
    return out


def shaping_metrics(groups: Sequence[Group], args_of: Mapping[str, TrainerArgs]) -> Metrics:
    """Return how much ``mask_truncated`` and ``overlong_buffer`` changed of a step's rollouts.

    ``masked_fraction`` is the share of the scored rollouts that train no token, and
    ``overlong/cost_mean`` what length cost a rollout on average. Only what is on is there: both are
    over the environments where it is.

    Args:
        groups: The step's.
        args_of: ``[trainer.args]`` by the environment's name.
    """
    traces = [(trace, args_of[group.environment]) for group in groups for trace in group.traces]
    masked = [was_cut(trace) for trace, args in traces if args.mask_truncated]
    costs = [sum(overlong(trace, args)) for trace, args in traces if args.overlong_buffer]
    out: Metrics = {}
    if masked:
        out["masked_fraction"] = fmean(masked)
    if costs:
        out["overlong/cost_mean"] = fmean(costs)
    return out


def trace_metrics(traces: Sequence[Trace]) -> Metrics:
    """Return reward, success and every component of the score, over scored traces.

    A component's mean is over the traces that it applied to; where there was none, it is left
    out. ``gate/x`` is the share of them that kept the gate.

    Raises:
        ValueError: If no trace has a reward.
    """
    scores = [trace.score for trace in traces if trace.score is not None]
    rewards = [score.reward for score in scores if score.reward is not None]
    outcomes = [score.outcome for score in scores if score.outcome is not None]
    if not rewards:
        raise ValueError("no trace has a reward")
    out: Metrics = {"reward/mean": fmean(rewards), "reward/std": pstdev(rewards)}
    if outcomes:  # none where a violated gate is all that is known
        out["success_rate"] = fmean(outcome >= 1.0 for outcome in outcomes)
        out["reward/outcome"] = fmean(outcomes)
    for kind in ("penalty", "gate", "part", "metric"):
        for name, values in _components(scores, kind).items():
            out[f"{kind}/{name}"] = fmean(values)
    return out


def pass_metrics(traces: Sequence[Trace], rollouts_per_example: int) -> Metrics:
    """Return the chance that one of k rollouts of a task succeeds, its mean over tasks, as pass@k.

    For k = 1, 2, 4, ... and the number of rollouts, where that is more than one; without tasks of
    at least k judged rollouts there is none (:func:`~vf.evaluation.estimators.pass_at_k`).
    """
    if rollouts_per_example == 1:
        return {}
    tasks = {trace.task.id for trace in traces}
    tally = Tally("", "", len(tasks), rollouts_per_example)
    for trace in traces:
        tally.add(trace)
    pass_at = tally.summary().pass_at
    return {f"pass@{k}": at.mean for k, at in pass_at.items() if at.tasks}


def _components(scores: Sequence[Score], kind: str) -> dict[str, list[float]]:
    """Return the values of one kind of component by name, where it applied."""
    values: dict[str, list[float]] = {}
    for score in scores:
        named: dict[str, Mapping[str, float | None]] = {
            "penalty": score.penalties,
            "gate": score.gates,
            "part": score.parts,
            "metric": score.metrics,
        }
        for name, value in named[kind].items():
            if value is not None:
                values.setdefault(name, []).append(value)
    return values


def update_metrics(
    updates: Sequence[UpdateStats],
    *,
    reference: bool = False,
    corrected: bool = False,
    routed: bool = False,
    replayed: bool = False,
    taught: str | None = None,
    observing: bool = False,
) -> Metrics:
    """Return the training side, token-weighted over a step's optimizer steps.

    The outer quantiles of the importance ratio are those of the optimizer step where it is widest.
    A step that was skipped because it was not finite is counted, but is in no mean.

    Args:
        updates: The statistics of the optimizer steps.
        reference: Whether there is a reference model to tell the distance from.
        corrected: Whether weights correct for the sampler.
        routed: Whether the routers have an auxiliary loss.
        replayed: Whether the trainer's experts are compared with the engine's.
        taught: The loss of a teacher, if there is one.
        observing: Whether observations carry loss.
    """
    every, updates = updates, [update for update in updates if not update.skipped]
    tokens = sum(update.tokens for update in updates)
    skipped = len(every) - len(updates)
    if not tokens:
        return {"tokens/trained": 0, "updates/skipped": skipped}

    def mean(values: Sequence[float]) -> float:
        return sum(v * u.tokens for v, u in zip(values, updates, strict=True)) / tokens

    out = {
        "loss": mean([update.loss for update in updates]),
        "grad_norm": mean([update.grad_norm for update in updates]),
        "kl_sample_train_v1": mean([update.kl_v1 for update in updates]),
        "kl_sample_train_v2": mean([update.kl_v2 for update in updates]),
        "kl_sample_train_v3": mean([update.kl_v3 for update in updates]),
        "entropy": mean([update.entropy for update in updates]),
        "ratio/min": min(update.ratio_min for update in updates),
        "ratio/p01": min(update.ratio_p01 for update in updates),
        "ratio/p50": mean([update.ratio_p50 for update in updates]),
        "ratio/p99": max(update.ratio_p99 for update in updates),
        "ratio/max": max(update.ratio_max for update in updates),
        "clip_fraction": mean([update.clip_fraction for update in updates]),
        "drop_fraction": mean([update.drop_fraction for update in updates]),
        "tokens/trained": tokens,
        "tokens/computed": sum(update.computed_tokens for update in every),
        "sequences/too_long": sum(update.too_long for update in every),
        "oom_retries": sum(update.oom_retries for update in every),
        "updates/skipped": skipped,
    }
    if reference:
        out["kl_reference_v1"] = mean([update.kl_reference_v1 for update in updates])
        out["kl_reference_v3"] = mean([update.kl_reference_v3 for update in updates])
    if corrected:
        out["importance_weight/mean"] = mean([update.importance_weight for update in updates])
        out["bounded_fraction"] = mean([update.bounded_fraction for update in updates])
        out["kl_sample_old_v1"] = mean([update.kl_old_v1 for update in updates])
        out["kl_sample_old_v3"] = mean([update.kl_old_v3 for update in updates])
    if routed:
        out["router_aux_loss"] = mean([update.router_aux_loss for update in updates])
    if replayed:
        disagreement = [update.router_disagreement for update in updates]
        out["router_disagreement"] = mean(disagreement)
    if taught is not None:
        out["kl_teacher_v1"] = mean([update.kl_teacher_v1 for update in updates])
    if taught == "forward_kl":
        out["kl_teacher_forward"] = mean([update.kl_teacher_forward for update in updates])
    if observing:
        seen = out["tokens/observed"] = sum(update.observed_tokens for update in updates)
        if seen:
            total = sum(update.observation_loss * update.observed_tokens for update in updates)
            out["observation_loss"] = total / seen
    return out
