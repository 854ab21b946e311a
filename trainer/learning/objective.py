"""The objective of an optimizer step, one micro-batch at a time, and its statistics.

    scale · Σ over trained tokens of w · (v · loss + β·k3(p ‖ p_ref) − c·H) + a · aux
        − b · scale · Σ over observed tokens of w_obs · log p

scale, w and w_obs are those of :mod:`vf.trainer.learning.batches.normalisation`, v is 1 or the
weight of :class:`~vf.trainer.learning.losses.importance_sampling.Correction`, H is the entropy of
the learner's distribution, aux the loss of routers (:mod:`vf.trainer.learning.losses.router_loss`),
and observed tokens are those of :mod:`vf.trainer.learning.batches.observations`. With
``kl_penalty_type = "advantage"`` the KL is in the advantages instead. A teacher's part of them is
``teacher_coef`` · (log p_teacher − log q) (:mod:`vf.trainer.learning.teacher`), or, with
``teacher_loss = "forward_kl"``, ``teacher_coef`` · KL(p_teacher ‖ p) is added to each token's loss
(:mod:`vf.trainer.learning.batches.top_tokens`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from vf.runtime.errors import TrainingError
from vf.trainer.learning.batches.batch import MicroBatch
from vf.trainer.learning.batches.normalisation import Totals
from vf.trainer.learning.loss_recorder import Watch
from vf.trainer.learning.losses.custom_loss import Loss
from vf.trainer.learning.losses.importance_sampling import Corrected, Correction
from vf.trainer.learning.losses.kl import (
    BINS,
    WIDEST,
    histogram,
    k1,
    k2,
    k3,
    ratio_quantiles,
    shaped_advantages,
)
from vf.trainer.learning.losses.policy_gradient import (
    LossArrays,
    LossFn,
    TokenLosses,
    build_loss,
    masked,
)
from vf.trainer.learning.model.forward import Predictions
from vf.trainer.learning.sharding.ranks import Ranks
from vf.trainer.settings.config import TrainerArgs

# What is summed over trained tokens, in this order; the histogram of log ratios follows.
_SUMS = (
    *("loss", "k1", "k2", "k3", "entropy", "clipped", "dropped", "reference_k1", "reference_k3"),
    *("weight", "bounded", "old_k1", "old_k3", "router", "teacher_k1", "routed", "rerouted"),
    *("observation", "observed", "teacher_kl"),
)


@dataclass(frozen=True, slots=True)
class UpdateStats:
    """What one optimizer step did, or one call that added to it; means are over its trained tokens.

    Attributes:
        loss: What was minimised: the mean loss per trained token with ``token`` normalisation.
        grad_norm: L2 norm of the gradient before clipping; NaN before the optimizer step.
        kl_v1: mean(log q − log p), the k1 estimate of KL(sampler ‖ learner), in nats.
        kl_v2: ½·mean((log q − log p)²), the k2 estimate, in nats.
        kl_v3: mean(r − 1 − log r), the k3 estimate, in nats.
        entropy: Mean entropy of the learner's distribution, in nats.
        ratio_min: Smallest importance ratio r = p / q; this and the next are within 0.6 % of
            their log.
        ratio_p01: Ratio below which 1 % of the tokens lie.
        ratio_p50: Median ratio.
        ratio_p99: Ratio above which 1 % of the tokens lie.
        ratio_max: Largest ratio.
        clip_fraction: Share of the tokens whose loss or gradient a clip changed.
        drop_fraction: Share of the tokens whose policy gradient was dropped.
        kl_reference_v1: mean(log q − log p_ref), in nats; 0 without a reference.
        kl_reference_v3: Mean k3 estimate of KL(learner ‖ reference), in nats; 0 without one.
        importance_weight: Mean weight that corrects for the sampler, once it is bounded; 1 without
            a correction.
        bounded_fraction: Share of the tokens whose weight was truncated or masked.
        kl_old_v1: mean(log q − log o), in nats, o being the trainer's probability before the
            batch's first optimizer step; 0 without a correction.
        kl_old_v3: Mean k3 estimate of KL(sampler ‖ the same), in nats.
        router_aux_loss: Mean auxiliary loss of the routers, before its coefficient; 0 without one.
        router_disagreement: Share of the choices of experts, one for each token and layer, in which
            the trainer's routers chose others than the engine's; 0 without ``router_replay``.
        kl_teacher_v1: mean(log q − log p_teacher), in nats; 0 without a teacher.
        kl_teacher_forward: Mean KL(teacher ‖ learner) over the teacher's likeliest tokens and the
            rest, in nats; 0 without ``teacher_loss = "forward_kl"``.
        tokens: Trained tokens.
        processed_tokens: All tokens of the samples, without padding.
        computed_tokens: Tokens that went through the model: padding counts, a prefix that samples
            share counts once. Where memory ran out, those of the first try's micro-batches.
        too_long: Samples over ``max_seq_len``, which were dropped or cut.
        oom_retries: How many trainer processes ran out of memory and began the step again.
        skipped: Whether the loss or the gradient was not finite, so that no step was taken.
        observation_loss: Mean of −log p of the observed tokens, in nats, before its coefficient; 0
            without any.
        observed_tokens: Tokens that it is of.
    """

    loss: float
    grad_norm: float
    kl_v1: float
    kl_v2: float
    kl_v3: float
    entropy: float
    ratio_min: float
    ratio_p01: float
    ratio_p50: float
    ratio_p99: float
    ratio_max: float
    clip_fraction: float
    drop_fraction: float
    kl_reference_v1: float
    kl_reference_v3: float
    importance_weight: float
    bounded_fraction: float
    kl_old_v1: float
    kl_old_v3: float
    router_aux_loss: float
    router_disagreement: float
    kl_teacher_v1: float
    tokens: int
    processed_tokens: int
    computed_tokens: int
    too_long: int
    oom_retries: int = 0
    skipped: bool = False
    observation_loss: float = 0.0
    observed_tokens: int = 0
    kl_teacher_forward: float = 0.0


class Objective:
    """The loss of a micro-batch.

    Args:
        args: ``[trainer.args]``.
        loss: Another loss than that of the settings: its name, or a function.
        ranks: The trainer processes, if what the loss is computed from is to be kept for samples
            that have a ``mark``.

    Attributes:
        watch: Keeps it; None without ``ranks``.

    Raises:
        ConfigError: If a custom loss cannot be found.
    """

    def __init__(self, args: TrainerArgs, loss: Loss = None, ranks: Ranks | None = None) -> None:
        self._args = args
        self.watch = None if ranks is None else Watch(ranks)
        if isinstance(loss, str):
            args = args.model_copy(update={"loss_fn": loss})
        self._loss_fn: LossFn = loss if callable(loss) else build_loss(args)
        self._name = args.import_path  # of what the user wrote
        if callable(loss):
            self._name = getattr(loss, "__qualname__", repr(loss))
        self._correction = Correction.of(args)

    def empty_sums(self) -> torch.Tensor:
        """Return the sums over no tokens, float64 ``[S]``, on the CPU."""
        return torch.zeros(len(_SUMS) + BINS, dtype=torch.float64)

    def __call__(
        self,
        batch: MicroBatch,
        predictions: Predictions,
        reference: torch.Tensor | None = None,
        mean_gap: float = 0.0,
        router: torch.Tensor | None = None,
        compared: tuple[int, int] = (0, 0),
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return this micro-batch's part of the loss, and its part of the step's sums.

        Args:
            batch: B rows of L tokens, with N trained ones.
            predictions: The learner's predictions of its tokens.
            reference: log p_ref of these, float32 ``[N]``.
            mean_gap: mean(log q − log p_ref) over the whole step, in nats.
            router: The weighted auxiliary loss of the routers, ``[]`` with gradient.
            compared: The number of choices of experts that were compared with the engine's, and the
                number of these that differ.

        Returns:
            The loss, float32 ``[]`` with gradient; and float64 ``[S]`` on the CPU.

        Raises:
            TrainingError: If a custom loss returned something that is not one per token.
        """
        args, mask = self._args, batch.loss_mask
        logprobs, entropy, observed, teacher_kl, _ = predictions
        advantages = batch.advantages
        if reference is not None and args.kl_penalty_type == "advantage":
            gaps = batch.sampler_logprobs - spread(reference, mask)
            coef, discount = args.kl_penalty_coef, args.kl_discount_factor
            advantages = advantages + shaped_advantages(gaps, mask, mean_gap, coef, discount)
        distance = None
        if batch.teacher_logprobs is not None:
            distance = masked(k1(batch.sampler_logprobs, batch.teacher_logprobs), mask)
            if args.teacher_loss == "reverse_kl":
                advantages = advantages - args.teacher_coef * distance
        arrays = LossArrays(spread(logprobs, mask), batch.sampler_logprobs, advantages, mask)
        if self._correction is not None:
            # Before the first optimizer step, the learner still is what the batch began with.
            old = arrays.logprobs.detach() if batch.old_logprobs is None else batch.old_logprobs
            arrays = replace(arrays, old_logprobs=old)
        token_losses = self._token_losses(arrays)
        values, correction = token_losses.values, None
        if self._correction is not None:
            correction = self._correction(arrays.log_weights, mask)
            values = correction.weights * values
        if self.watch is not None and batch.marks is not None:
            self.watch(batch, arrays, token_losses, correction)
        if reference is not None and args.kl_penalty_type == "loss":
            values = values + args.kl_penalty_coef * spread(k3(logprobs, reference), mask)
        if teacher_kl is not None:
            values = values + args.teacher_coef * spread(teacher_kl, mask)
        if args.entropy_coef:
            values = values - args.entropy_coef * spread(entropy, mask)
        loss = (values * batch.weights).sum()
        if router is not None:
            loss = loss + args.router_aux_loss_coef * router
        if observed is not None:  # also where there are none: backward passes are made together
            weights = batch.observation_weights
            weights = observed.new_zeros(0) if weights is None else weights[weights > 0]
            loss = loss - args.observation_loss_coef * (observed * weights).sum()
        with torch.no_grad():
            sums = self._sums(arrays, token_losses, loss, entropy, reference, correction, router)
            if distance is not None:
                sums[_SUMS.index("teacher_k1")] = distance.double().sum().cpu()
            seen = torch.zeros(0) if observed is None else observed.double()
            index = _SUMS.index("routed")
            sums[index : index + 4] = sums.new_tensor([*compared, -seen.sum().item(), len(seen)])
            if teacher_kl is not None:
                sums[_SUMS.index("teacher_kl")] = teacher_kl.double().sum().cpu()
        return loss, sums

    def stats(self, sums: torch.Tensor, factor: float, norm: float, totals: Totals) -> UpdateStats:
        """Return what the sums over a whole optimizer step say.

        Args:
            sums: float64 ``[S]``, over all micro-batches and ranks.
            factor: The factor of the summed loss.
            norm: The gradient's, before clipping.
            totals: The counts of the step's samples and tokens.
        """
        tokens = totals.tokens
        named = dict(zip(_SUMS, sums.tolist(), strict=False))
        mean = {name: value / max(tokens, 1) for name, value in named.items()}
        shares = (0.0, 0.01, 0.5, 0.99, 1.0)
        counts = sums[len(_SUMS) :]
        quantiles = ratio_quantiles(counts, shares) if tokens else [1.0] * len(shares)
        least, low, middle, high, most = quantiles
        return UpdateStats(
            loss=factor * named["loss"],
            grad_norm=norm,
            kl_v1=mean["k1"],
            kl_v2=mean["k2"],
            kl_v3=mean["k3"],
            entropy=mean["entropy"],
            ratio_min=least,
            ratio_p01=low,
            ratio_p50=middle,
            ratio_p99=high,
            ratio_max=most,
            clip_fraction=mean["clipped"],
            drop_fraction=mean["dropped"],
            kl_reference_v1=mean["reference_k1"],
            kl_reference_v3=mean["reference_k3"],
            importance_weight=mean["weight"],
            bounded_fraction=mean["bounded"],
            kl_old_v1=mean["old_k1"],
            kl_old_v3=mean["old_k3"],
            router_aux_loss=factor * named["router"],
            router_disagreement=named["rerouted"] / max(named["routed"], 1.0),
            kl_teacher_v1=mean["teacher_k1"],
            tokens=tokens,
            processed_tokens=totals.processed,
            computed_tokens=totals.computed,
            too_long=totals.too_long,
            observation_loss=named["observation"] / max(named["observed"], 1.0),
            observed_tokens=int(named["observed"]),
            kl_teacher_forward=mean["teacher_kl"],
        )

    def _token_losses(self, arrays: LossArrays) -> TokenLosses:
        name = self._name
        try:
            losses = self._loss_fn(arrays)
        except Exception as error:
            if name is None:
                raise
            raise TrainingError(
                f"the loss {name!r} raised {type(error).__name__}: {error}"
            ) from error
        values = losses.values if isinstance(losses, TokenLosses) else losses
        if not isinstance(values, torch.Tensor) or values.shape != arrays.loss_mask.shape:
            what = (
                f"a tensor of shape {tuple(values.shape)}"
                if isinstance(values, torch.Tensor)
                else type(values).__name__
            )
            raise TrainingError(
                f"the loss {name!r} returned {what}; it must return one loss per token, here of "
                f"shape {tuple(arrays.loss_mask.shape)}"
            )
        if not values.requires_grad:
            raise TrainingError(
                f"the loss {name!r} returned values without a gradient; compute them from "
                "arrays.logprobs"
            )
        held = losses if isinstance(losses, TokenLosses) else TokenLosses(values)
        for what, which in (("clipped", held.clipped), ("dropped", held.dropped)):
            if which is not None and (which.dtype, which.shape) != (torch.bool, values.shape):
                raise TrainingError(
                    f"the loss {name!r} returned {what} of shape {tuple(which.shape)} and "
                    f"{which.dtype}; it must be a bool per token, here of shape "
                    f"{tuple(values.shape)}"
                )
        # A user's loss may forget the mask; a token that is not trained still has none.
        return TokenLosses(masked(values, arrays.loss_mask), held.clipped, held.dropped)

    def _sums(
        self,
        arrays: LossArrays,
        losses: TokenLosses,
        loss: torch.Tensor,
        entropy: torch.Tensor,
        reference: torch.Tensor | None,
        correction: Corrected | None,
        router: torch.Tensor | None,
    ) -> torch.Tensor:
        mask = arrays.loss_mask
        p, q = arrays.logprobs[mask].double(), arrays.sampler_logprobs[mask].double()
        # A single wild ratio must show in the monitors, and not overflow them.
        near = q + (p - q).clamp(-WIDEST, WIDEST)
        zero = loss.double() * 0.0
        sums = [loss.double(), k1(q, p).sum(), k2(q, p).sum(), k3(q, near).sum(), entropy.sum()]
        sums += [
            zero if held is None else (held & mask).sum()
            for held in (losses.clipped, losses.dropped)
        ]
        if reference is None:
            sums += [zero, zero]
        else:
            ref = reference.double()
            close = p + (ref - p).clamp(-WIDEST, WIDEST)
            sums += [k1(q, ref).sum(), k3(p, close).sum()]
        if correction is None:
            sums += [mask.sum(), zero, zero, zero]
        else:
            gap = arrays.log_weights[mask].double()
            old = q + gap.clamp(-WIDEST, WIDEST)
            sums += [correction.weights[mask].sum(), correction.bounded.sum()]
            sums += [-gap.sum(), k3(q, old).sum()]
        sums += [zero if router is None else router, *[zero] * 6]  # the rest is not known here
        head = torch.stack([value.double() for value in sums]).cpu()
        return torch.cat([head, histogram(p - q)])


def is_finite(sums: torch.Tensor) -> bool:
    """Return whether the sums of a step hold no infinity and no NaN."""
    return bool(torch.isfinite(sums).all())


def spread(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Put ``[N]`` values of the trained tokens into ``[B, L]``, with 0 elsewhere."""
    return torch.zeros(mask.shape, dtype=values.dtype, device=values.device).masked_scatter(
        mask, values
    )
