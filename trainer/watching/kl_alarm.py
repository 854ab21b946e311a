"""The alarm *kl*: sampler and learner disagree, with what to check, the likeliest cause first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vf.inference.model import filters_used
from vf.trainer.settings.config import TrainerArgs

KL_THRESHOLD = 0.01  # nats, of any of the three estimates


def observe_kl(
    ringing: set[str],
    metrics: Mapping[str, float],
    args: TrainerArgs,
    others: Sequence[TrainerArgs] = (),
    *,
    supported: bool = False,
) -> tuple[dict[str, float], list[str]]:
    """Check how far a step's learner was from its sampler.

    Args:
        ringing: The alarms that are on; ``kl`` is added or removed.
        metrics: The step's, with ``kl_sample_train_v1`` to ``_v3`` if anything was trained.
        args: ``[trainer.args]``; the note names only checks that apply to it.
        others: The same, as they are in each environment.
        supported: Whether the engine told which tokens its filters left.

    Returns:
        The metric ``alarm/kl``: 1 while it rings, else 0. And a note when it begins.
    """
    worst = max(abs(metrics.get(f"kl_sample_train_v{kind}", 0.0)) for kind in (1, 2, 3))
    if worst <= KL_THRESHOLD:
        ringing.discard("kl")
        return {"alarm/kl": 0.0}, []
    if "kl" in ringing:
        return {"alarm/kl": 1.0}, []
    ringing.add("kl")
    causes = _kl_causes(metrics, args, others, supported=supported)
    checks = _kl_checks(metrics)
    likeliest = f"Likely cause: {causes[0]}" if causes else "No setting explains it"
    rest = "; ".join(f"({number}) {check}" for number, check in enumerate(causes[1:] + checks, 1))
    return {"alarm/kl": 1.0}, [
        f"kl_sample_train is {worst:.3g} nats, above the threshold of {KL_THRESHOLD:g}: the tokens "
        f"were sampled from another distribution than the one that is trained. {likeliest}. Check "
        f"in this order: {rest}"
    ]


def _kl_causes(
    metrics: Mapping[str, float],
    args: TrainerArgs,
    others: Sequence[TrainerArgs],
    *,
    supported: bool,
) -> list[str]:
    """Return possible reasons for the disagreement, the likeliest first."""
    checks = []
    used = filters_used(*(others or [args]))
    if used and not supported:
        checks.append(
            f"{', '.join(used)} leaves out tokens, and the engine did not tell which: it changes "
            "what is sampled and not what is trained; set it neutral"
        )
    if _is_of_engine(metrics):
        checks.append(
            f"the engine computes differently (logprob_gap = {metrics['logprob_gap']:.2g} nats, "
            "with the same weights): look at its dtype, quantisation, adapter and template; `vf-rl "
            "mismatch` on the run's TOML tells what rounding explains"
        )
    stale = metrics.get("staleness/mean", 0.0)
    if stale > 0:
        checks.append(
            f"tokens were {stale:.2g} versions old on average: max_steps_off_policy = 0 makes "
            "them new, a lower learning_rate or a clipped loss bears it better"
        )
    if args.num_iterations > 1:
        checks.append(
            f"num_iterations = {args.num_iterations} trains on a batch again with weights that "
            "have moved: use a clipped loss, or lower it"
        )
    if args.num_substeps > 1:
        checks.append(
            f"num_substeps = {args.num_substeps} trains on tokens of older weights: lower it or "
            "learning_rate, or use a clipped loss"
        )
    return checks


def _is_of_engine(metrics: Mapping[str, float]) -> bool:
    """Return whether what the engine computes differently makes at least half of the KL's v2.

    The mean of a size is at most the root of the mean square, so it makes ½·gap² at least.
    """
    gap, kl = metrics.get("logprob_gap"), metrics.get("kl_sample_train_v2")
    return gap is not None and kl is not None and gap * gap >= kl


def _kl_checks(metrics: Mapping[str, float]) -> list[str]:
    """Return what is worth a look whatever the cause is."""
    gap = metrics.get("logprob_gap")
    checks = []
    if gap is not None and not _is_of_engine(metrics):
        checks.append(
            f"logprob_gap = {gap:.2g} nats is what engine and trainer differ by with the same "
            "weights, on a probe: too little, unless the rollouts are unlike the probe"
        )
    return [
        *checks,
        "ratio/p99 and ratio/max: whether few tokens make it, or all; `vf-rl mismatch RUN` shows "
        "which",
    ]
