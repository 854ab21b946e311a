"""The model that learns: loading, LoRA, the optimizer, and one optimizer step."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from vf.inference.rendering.vision import Vision
from vf.inference.rotary import fix_rotary
from vf.runtime.errors import TrainingError
from vf.traces.images import Image
from vf.trainer.learning.batches.batch import MicroBatch, Sample
from vf.trainer.learning.batches.normalisation import Totals, scale, weighted
from vf.trainer.learning.batches.overlong import fit
from vf.trainer.learning.learning_rate import Course
from vf.trainer.learning.losses.custom_loss import Loss
from vf.trainer.learning.losses.importance_sampling import Correction
from vf.trainer.learning.losses.router_loss import RouterLoss, token_weight
from vf.trainer.learning.memory.out_of_memory import Budget, Work, attempt
from vf.trainer.learning.memory.trainer_memory import CEILING
from vf.trainer.learning.model.building import build_model, build_optimizer, check_moments
from vf.trainer.learning.model.dropout import (
    disable_dropout,
    has_dropout,
    modes_of_training,
    training_mode,
)
from vf.trainer.learning.model.forward import Forward
from vf.trainer.learning.model.frozen_models import Frozen
from vf.trainer.learning.model.precision import allow_tf32, compute_dtype
from vf.trainer.learning.model.quantized import check_quantized
from vf.trainer.learning.model.self_test import choose_forward
from vf.trainer.learning.objective import Objective, UpdateStats, is_finite
from vf.trainer.learning.old_logprobs import (
    LogprobField,
    LogprobsByTokens,
    attach,
    by_tokens,
    samples_for_pass,
)
from vf.trainer.learning.passes import Passes, requested_outputs
from vf.trainer.learning.sharding.checkpoint_shards import OPTIMIZER, PARAMETERS, Stored
from vf.trainer.learning.sharding.rank_commands import Accumulate, Finish, Together
from vf.trainer.learning.sharding.ranks import Ranks, together
from vf.trainer.learning.sharding.weights import Weights
from vf.trainer.settings.config import TrainerArgs


class Policy:
    """The trained module with its optimizer and schedule.

    With several trainer processes each has one, and all stay alike: see
    :mod:`vf.trainer.learning.sharding.ranks`. Rank 0 calls :meth:`update`, and the others take
    part.

    Args:
        model_name: A local folder or a hub name.
        args: ``[trainer.args]``.

    Raises:
        ConfigError: If the model or the reference cannot be loaded, a LoRA target module does not
            exist, or a custom loss cannot be found.
        TrainingError: If another trainer process is gone.

    Attributes:
        passes: Over micro-batches.
        position: Where the learning rate is in its course, in optimizer steps.
        optimizer_steps: How many were taken.
    """

    def __init__(self, model_name: str, args: TrainerArgs) -> None:
        self.ranks = Ranks(compute_dtype(args))
        self.args = args = self.ranks.led(args)  # what "auto" means is found by rank 0
        self.accelerator = self.ranks.accelerator
        self.objective = Objective(args, ranks=self.ranks)
        self._sums, self._totals = self.objective.empty_sums(), Totals()
        self._work: list[Work] = []  # of the optimizer step under way
        self._loads = [0] * self.ranks.count  # tokens that each rank has got in it
        self._added = self._sums, self._totals  # by the last call
        tokens = CEILING if args.micro_batch_tokens == "auto" else args.micro_batch_tokens
        self.budget = Budget(tokens, args.micro_batch_size)
        check_quantized(args)
        self.sharding = self.ranks.sharding
        device, sharded = self.accelerator.device, self.sharding.together
        self._vision = Vision.from_pretrained(model_name) if args.images else None
        self._given = self.sharding.one_loads and self.ranks.rank > 0  # rank 0 sends the weights
        model = build_model(model_name, args, device=device, sharded=sharded, empty=self._given)
        fix_rotary(model, args.max_seq_len)
        if args.disable_dropout:
            disable_dropout(model)
        offload = args.optim == "adamw_offload"
        self.weights = Weights(model, self.ranks, adapter=args.use_lora, offload=offload)
        self.model: Any = model
        self.optimizer = build_optimizer(self.weights.trained, args)
        self.course = Course.of(args, model.config.get_text_config().hidden_size)
        self.position = self.optimizer_steps = 0
        self.sharding.prepare(self.accelerator, model, self.optimizer, args.max_grad_norm)
        self.model.eval()
        self.forward = self._choose_forward(self.weights.module)
        self.budget.apart = self.forward.apart
        self.router_loss = RouterLoss(self.weights.module, args)
        self.forward.follow(args.router_replay)
        self._trained = modes_of_training(model, base=not args.disable_dropout)
        # Dropout must differ between samples, and so must the activations that it is applied to.
        share = args.share_prefixes and not has_dropout(self._trained)
        self._outputs = requested_outputs(args)
        self.passes = Passes(self.forward, self.ranks, self.budget, args.temperature, share=share)
        frozen = Frozen(args, self.model, self.sharding, device, self._given)
        self.reference, beside = frozen.reference()
        self._reference_forward = self.forward if beside is None else self._choose_forward(beside)
        self._teacher_forward = frozen.teacher(self._choose_forward)
        # Last, for the ways to log-probabilities were compared in full precision.
        allow_tf32(device, args, model, self._reference_forward.model)

    def _choose_forward(self, model: Any, longest: int = 0) -> Forward:
        args, sharding = self.args, self.sharding
        how = {"packing": args.packing, "deterministic": args.deterministic}
        longest = longest or args.max_seq_len
        return choose_forward(model, longest, sharding=sharding, vision=self._vision, **how)

    @property
    def learning_rate(self) -> float:
        """The rate that the next optimizer step will use."""
        return self.course.rate(self.position)

    def update(self, samples: Sequence[Sample]) -> UpdateStats:
        """Take one optimizer step on the samples.

        Raises:
            TrainingError: If :meth:`accumulate` or :meth:`finish` raises it.
        """
        self.accumulate(samples)
        return self.finish()

    def accumulate(self, samples: Sequence[Sample], loss: Loss = None) -> None:
        """Add the gradient of samples to that of the optimizer step under way.

        However a step's rollouts are passed, in one call or in many, the gradient is that of
        the same sum (:func:`~vf.trainer.learning.batches.normalisation.weighted`). An exception:
        with ``kl_penalty_type = "advantage"``, where samples depend on the mean over all, a step
        must be one call.

        Args:
            samples: The samples, with all branches of their rollouts.
            loss: Another than that of the settings, by name or as a function that can be pickled.

        Raises:
            TrainingError: If a custom loss is at fault, a sample is too long and refused, memory
                ran out twice, or another trainer process is gone.
        """
        args, count = self.args, self.ranks.count
        samples, too_long = fit(samples, args)
        seeds = torch.randint(2**62, (count,)).tolist() if count > 1 else [0]
        batches, rounds = self.passes.share_out(weighted(samples, args), self._loads)
        computed = sum(batch.computed for part in batches for batch in part)
        totals = replace(Totals.of(samples), computed=computed, too_long=too_long)
        parts = [
            Accumulate(part, totals, seed, rounds, loss)
            for part, seed in zip(batches, seeds, strict=True)
        ]
        self.ranks.tell(parts)
        self.add_gradient(parts[0])
        self.ranks.joined()

    def with_old_logprobs(self, samples: Sequence[Sample]) -> list[Sample]:
        """Return samples that know their log-probabilities with the weights as they are now.

        Without ``importance_sampling_mode`` nothing asks for them, and samples stay as they are.
        Call it before a batch's first optimizer step, with what is trained on after it.

        Raises:
            TrainingError: If a sample is too long and refused, memory ran out twice, or another
                trainer process is gone.
        """
        if Correction.of(self.args) is None:
            return list(samples)
        return self._with("old_logprobs", samples)

    def with_teacher_logprobs(self, samples: Sequence[Sample]) -> list[Sample]:
        """Return samples that know the teacher's, if there is one beside the policy; likewise."""
        if self._teacher_forward is None:
            return list(samples)
        return self._with("teacher_logprobs", samples)

    def _with(self, which: LogprobField, samples: Sequence[Sample]) -> list[Sample]:
        if not samples:
            return []
        todo = samples_for_pass(samples, self.args, which)
        batches, rounds = self.passes.share_out(todo, [0] * self.ranks.count)
        self.ranks.tell([Together("find_logprobs", (which, part, rounds)) for part in batches])
        by_token_ids = self.find_logprobs(which, batches[0], rounds)
        self.ranks.joined()
        return attach(samples, by_token_ids, which)

    def find_logprobs(
        self, which: LogprobField, batches: list[MicroBatch], rounds: int
    ) -> LogprobsByTokens:
        """Do this rank's part of what samples ask for; rank 0 gets what all have found."""
        teacher = self._teacher_forward if which == "teacher_logprobs" else None
        phase = "forward" if teacher is None else "teacher"
        work = self.passes.ask(map(Work, batches), rounds, teacher or self.forward, phase)
        return dict(ChainMap(*self.ranks.gathered(by_tokens(work))))

    def measure(self) -> UpdateStats:
        """Return what the last :meth:`accumulate` added, as if it were the whole step.

        Every rank does so for itself, and waits for the others: :meth:`accumulate` does not.
        """
        if self.ranks.rank == 0:
            self.ranks.tell([Together("measure", ())] * self.ranks.count)
        sums, totals = self._added[0].clone(), self._added[1]
        self.ranks.total(sums)
        self.ranks.joined()
        return self.objective.stats(sums, scale(totals, self.args), float("nan"), totals)

    def drop(self) -> UpdateStats:
        """Forget this process's gradient of the optimizer step under way; say what it was of."""
        self.weights.masters.forget_gradients()
        totals, self._totals = self._totals, Totals()
        self._sums, self._loads = self.objective.empty_sums(), [0] * self.ranks.count
        self._work, self.budget.retries = [], 0
        return self.objective.stats(self._sums, 0.0, 0.0, totals)

    def finish(self, learning_rate: float | None = None) -> UpdateStats:
        """Take the optimizer step with the gradient of what was accumulated.

        Where the loss or the gradient is not finite, no step is taken (``UpdateStats.skipped``).

        Args:
            learning_rate: The learning rate of this step; by default that of the settings' course.

        Raises:
            TrainingError: If another trainer process is gone.
        """
        rate = self.learning_rate if learning_rate is None else learning_rate
        self._loads = [0] * self.ranks.count
        self.ranks.tell([Finish(rate)] * self.ranks.count)
        with self.passes.phase("optimizer", None):
            stats = self.take_step(rate)
        self.position += 1
        return stats

    def filled(self, samples: Sequence[Sample]) -> bool:
        """Return whether samples are enough for a full micro-batch on every rank.

        With fewer, :meth:`accumulate` would compute what samples share once for each rank, and some
        would wait for others.
        """
        return self.passes.filled(samples)

    @property
    def accumulated(self) -> Totals:
        """What the optimizer step under way is made of so far."""
        return self._totals

    def add_gradient(self, part: Accumulate) -> None:
        """Do this rank's part of :meth:`accumulate`.

        Raises:
            TrainingError: If a custom loss is at fault, memory ran out twice, or another trainer
                process is gone.
        """
        before = self._sums.clone()
        self._totals += part.totals
        todo = self._ask_reference(part)
        self._work += todo
        with training_mode(self.model, self._trained), self.forward.active():
            while shortage := attempt(todo, self._backward):
                self.weights.masters.forget_gradients()
                self._sums = self.objective.empty_sums()
                todo = self._work = self.passes.halve(self._work, shortage)
            for _ in range(part.rounds - len(todo)):
                self._pass_idly()
        self._added = self._sums - before, part.totals

    def _pass_idly(self, weight: float = 0.0) -> None:
        self.sharding.backward(weight * self.passes.pass_idly(self.forward, **self._outputs))

    def _backward(self, work: Work) -> None:
        """Add the gradient of one micro-batch."""
        args = self.args
        batch = work.batch.to(self.accelerator.device)
        with self.passes.phase("forward", batch), self.router_loss.watching():
            predictions = self.forward(batch, self.passes.temperature(batch), **self._outputs)
            router = self.router_loss(batch, work.token_weight)
            objective = self.objective if work.loss is None else Objective(args, work.loss)
            routed = router, self.forward.compared
            loss, sums = objective(batch, predictions, work.reference, work.mean_gap, *routed)
        with self.passes.phase("backward", batch):
            self.sharding.backward(loss)
        self._sums += sums

    def take_step(self, learning_rate: float) -> UpdateStats:
        """Do this rank's part of :meth:`finish`; all ranks end with the same parameters.

        Raises:
            TrainingError: If :meth:`finish` raises it; on every rank alike.
        """
        sums, totals = self._sums, self._totals
        self._sums, self._totals = self.objective.empty_sums(), Totals()
        tokens = sum(int(work.batch.loss_mask.sum()) for work in self._work)
        counted = torch.cat([sums, sums.new_tensor([self.budget.retries, tokens])])
        self._work, self.budget.retries = [], 0
        self.ranks.add_up(self.weights.trained, counted)
        sums, retries = counted[:-2], int(counted[-2])
        if int(counted[-1]) != totals.tokens:
            raise TrainingError(
                f"the trainer processes disagree on a batch: of its {totals.tokens:,} trained "
                f"tokens they computed {int(counted[-1]):,}"
            )
        factor = scale(totals, self.args)
        if not is_finite(sums):
            with training_mode(self.model, self._trained), self.forward.active():
                self._pass_idly(float("nan"))  # and a step with such a gradient is not taken
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        trained, limit = self.weights.trained, self.args.max_grad_norm
        norm = self.sharding.step(self.optimizer, trained, factor, limit)
        self.weights.masters.write()
        taken = is_finite(sums) and norm < float("inf")
        if taken:
            self.optimizer_steps += 1
            self._update_reference()
        stats = self.objective.stats(sums, factor, norm, totals)
        return replace(stats, oom_retries=retries, skipped=not taken)

    def _ask_reference(self, part: Accumulate) -> list[Work]:
        """Return micro-batches with log p_ref of their trained tokens."""
        weight = token_weight(part.totals, self.args)
        whole = [Work(batch, loss=part.loss, token_weight=weight) for batch in part.batches]
        if self.reference is None:
            return self.passes.cut(whole)
        with self.reference.active():
            work = self.passes.ask(whole, part.rounds, self._reference_forward, "reference")
        gap = torch.zeros(1, dtype=torch.float64)
        for item in work:
            if item.reference is not None:
                sampled = item.batch.sampler_logprobs[item.batch.loss_mask]
                gap += (sampled - item.reference.cpu()).double().sum()
        if self.args.kl_penalty_type == "advantage":
            self.ranks.total(gap)
        for item in work:
            item.mean_gap = float(gap) / max(part.totals.tokens, 1)
        return work

    def _update_reference(self) -> None:
        every = self.args.reference_update_steps
        if self.reference is not None and every is not None and self.optimizer_steps % every == 0:
            self.reference.follow()

    def logprobs(
        self, prompt_ids: list[int], token_ids: list[int], images: Sequence[Image] = ()
    ) -> list[float]:
        """Return the log-probability of each token after the prompt, at the run's temperature."""
        [logprobs] = self.sample_logprobs([Sample.of(prompt_ids, token_ids, images)])
        return logprobs[len(prompt_ids) :].tolist()

    @together("sample_logprobs")
    def sample_logprobs(self, samples: Sequence[Sample]) -> list[torch.Tensor]:
        """Return log p of each sample's trained tokens, without a gradient.

        Returns:
            One float32 ``[T]`` per sample of T tokens, on the CPU; 0 where nothing is trained.
        """
        return self.passes.logprobs(samples)

    def states(self) -> Iterator[tuple[str, Any]]:
        """Yield what a checkpoint keeps: masters, the optimizer's state and the reference's.

        Each process yields what it holds; see
        :meth:`~vf.trainer.learning.sharding.copies.Copies.states`.
        """
        yield from self.sharding.states(self.optimizer, dict(self.weights.masters.named()))
        if self.reference is not None:
            yield from self.reference.state().items()

    def load_states(self, stored: Stored) -> None:
        """Take back what :meth:`states` yielded, except for the settings of AdamW.

        Those are the run's own, which may have been changed since. Each process does so for itself.

        Raises:
            ConfigError: If it is of another model or adapter, or of an optimizer that keeps other
                moments.
            RuntimeError: If it cannot be read.
        """
        masters = dict(self.weights.masters.named())
        self.weights.check_shapes(stored.shapes(PARAMETERS))
        for name in masters:
            check_moments(stored.below(f"{OPTIMIZER}/{name}"), self.args)
        self.sharding.load_states(self.optimizer, masters, stored)
        self.weights.masters.write()
        if self.reference is not None:
            self.reference.load_state(stored)
