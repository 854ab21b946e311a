"""The alarm for a sampler and a learner that disagree: KL(sampler ‖ learner) beyond 0.01 nats."""

from __future__ import annotations

from collections.abc import Mapping

from vf.trainer.settings.config import TrainerArgs

THRESHOLD = 0.01  # nats, of any of the three estimates
NAME = "kl"


def observe_kl(
    ringing: set[str], metrics: Mapping[str, float], args: TrainerArgs
) -> tuple[dict[str, float], list[str]]:
    """Look at how far a step's learner was from its sampler.

    Args:
        ringing: The alarms that are on; ``kl`` is added or removed.
        metrics: The step's, with ``kl_sample_train_v1`` to ``_v3`` if anything was trained.
        args: ``[trainer.args]``: the checks that are named are those that fit it.

    Returns:
        The metric ``alarm/kl``: 1 while it rings, else 0. And what is to be said aloud when it
        begins.
    """
    worst = max(abs(metrics.get(f"kl_sample_train_v{kind}", 0.0)) for kind in (1, 2, 3))
    if worst <= THRESHOLD:
        ringing.discard(NAME)
        return {"alarm/kl": 0.0}, []
    if NAME in ringing:
        return {"alarm/kl": 1.0}, []
    ringing.add(NAME)
    checks = "; ".join(
        f"({place}) {check}" for place, check in enumerate(_checks(metrics, args), 1)
    )
    return {"alarm/kl": 1.0}, [
        f"kl_sample_train is {worst:.3g} nats, above the threshold of {THRESHOLD:g}: the tokens "
        "were sampled from another distribution than the one that is trained. Check in this "
        f"order: {checks}"
    ]


def _checks(metrics: Mapping[str, float], args: TrainerArgs) -> list[str]:
    """Return what may make sampler and learner disagree, the likeliest first."""
    checks = []
    filters = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
    used = [name for name, neutral in filters.items() if getattr(args, name) != neutral]
    if used:
        checks.append(
            f"{', '.join(used)} changes what is sampled and not what is trained: set it neutral"
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
    gap = metrics.get("logprob_gap")
    if gap is not None:
        checks.append(
            f"logprob_gap = {gap:.2g} nats is what engine and trainer differ by with the same "
            "weights: if it is of this size too, look at the engine's dtype, quantisation, "
            "adapter and template; if it is far smaller, the sampled weights were old"
        )
    checks.append("ratio/p99 and ratio/max: whether few tokens make it, or all")
    return checks
