"""The model that learns: loading, LoRA, the optimizer, and one optimizer step."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vf.inference.embedded.loading import load_module
from vf.traces.errors import ConfigError, TrainingError
from vf.traces.trace import Branch
from vf.trainer.learning.batch import MicroBatch, Sample, Totals, micro_batches, scale, weighted
from vf.trainer.learning.forward import token_logprobs
from vf.trainer.learning.learning_rate import peak_learning_rate
from vf.trainer.learning.lora_targets import lora_targets
from vf.trainer.learning.memory import CEILING
from vf.trainer.learning.objective import Objective, UpdateStats, is_finite
from vf.trainer.learning.out_of_memory import Budget, Work, attempt
from vf.trainer.learning.packing import share_out
from vf.trainer.learning.ranks import Accumulate, Finish, Ranks
from vf.trainer.learning.reference import AdapterReference, FrozenReference, Reference
from vf.trainer.learning.self_test import choose_forward, has_dropout
from vf.trainer.learning.too_long import fit
from vf.trainer.settings.config import TrainerArgs

# Told a part of an update that begins, and the micro-batch that it is about.
Phase = Callable[[str, MicroBatch | None], AbstractContextManager[None]]


def unwatched(name: str, batch: MicroBatch | None) -> AbstractContextManager[None]:
    """Nobody wants to know: the usual :data:`Phase`."""
    return nullcontext()


class Policy:
    """The trained module with its optimizer and schedule.

    With several trainer processes each has one, and all stay alike: see
    :mod:`vf.trainer.learning.ranks`. Rank 0 calls :meth:`update`, and the others take part.

    Args:
        model_name: A local folder or a hub name.
        args: ``[trainer.args]``.

    Raises:
        ConfigError: The model or the reference cannot be loaded, a LoRA target module does not
            exist, or a custom loss cannot be found.
        TrainingError: Another trainer process is gone.
    """

    def __init__(self, model_name: str, args: TrainerArgs) -> None:
        from transformers import get_scheduler

        self.args = args
        self.ranks = Ranks()
        self.accelerator = self.ranks.accelerator
        self.objective = Objective(args)
        self.phase: Phase = unwatched
        self._sums, self._totals = self.objective.empty_sums(), Totals()
        self._work: list[Work] = []  # of the optimizer step under way
        # What "auto" means is found before, for rank 0; the others get what it cuts.
        tokens = CEILING if args.micro_batch_tokens == "auto" else args.micro_batch_tokens
        self.budget = Budget(tokens, args.micro_batch_size)
        model = load_module(model_name, _dtype(args))
        width = model.config.get_text_config().hidden_size
        if args.use_lora:
            model = _with_lora(model, args)
        if args.gradient_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
            model.enable_input_require_grads()
        trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(
            trainable,
            lr=peak_learning_rate(args, width),
            betas=(args.betas[0], args.betas[1]),
            eps=args.eps,
            weight_decay=args.weight_decay,
        )
        name = (
            "constant_with_warmup"
            if args.lr_scheduler_type == "constant"
            else args.lr_scheduler_type
        )
        scheduler = get_scheduler(
            name,
            optimizer,
            num_warmup_steps=args.warmup_steps * args.updates_per_step,
            num_training_steps=args.max_steps * args.updates_per_step,
        )
        # Only placed on the device, never wrapped: the ranks sum their gradients themselves.
        self.model: Any = self.accelerator.prepare_model(model, evaluation_mode=True)
        self.optimizer, self.scheduler = self.accelerator.prepare(optimizer, scheduler)
        self.ranks.align(self._trained)
        self.model.eval()
        self.forward = choose_forward(self.module, args.max_seq_len, packing=args.packing)
        # Dropout must differ between samples, and so must the activations that it is applied to.
        self._share = args.share_prefixes and not has_dropout(model)
        self._reference_forward = self.forward
        self.reference = self._build_reference() if args.kl_penalty_coef else None

    def _build_reference(self) -> Reference:
        args, mine = self.args, self.accelerator.unwrap_model(self.model)
        if args.reference_model is None:
            return AdapterReference(mine)
        model = load_module(args.reference_model, _dtype(args), "trainer.args.reference_model")
        model = model.to(self.accelerator.device)
        reference = FrozenReference(model, mine, follows=args.reference_update_steps is not None)
        self._reference_forward = choose_forward(model, args.max_seq_len, packing=args.packing)
        return reference

    @property
    def module(self) -> Any:
        """The model as it was loaded, with the adapter inside its layers if there is one."""
        model = self.accelerator.unwrap_model(self.model)
        return model.get_base_model() if self.args.use_lora else model

    @property
    def learning_rate(self) -> float:
        """The rate that the next optimizer step will use."""
        return float(self.scheduler.get_last_lr()[0])

    def update(self, samples: Sequence[Sample]) -> UpdateStats:
        """Take one optimizer step on the samples.

        Raises:
            TrainingError: As :meth:`accumulate` and :meth:`finish`.
        """
        self.accumulate(samples)
        return self.finish()

    def accumulate(self, samples: Sequence[Sample]) -> None:
        """Add the gradient of samples to that of the optimizer step under way.

        However a step's samples are handed over, in one call or in many, the gradient is that of
        the same sum (:func:`~vf.trainer.learning.batch.weighted`). An exception: with
        ``kl_penalty_type = "advantage"``, where samples depend on the mean over all, a step must
        be one call.

        Raises:
            TrainingError: A custom loss is at fault, a sample is too long and refused, memory ran
                out twice, or another trainer process is gone.
        """
        args, count = self.args, self.ranks.count
        samples, too_long = fit(samples, args)
        seeds = torch.randint(2**62, (count,)).tolist() if count > 1 else [0]
        packed = self.forward.how != "padded"
        share = packed and self._share
        batches = [
            self.budget.pack(part, packed=packed, share=share)
            for part in share_out(weighted(samples, args), count, share=share)
        ]
        computed = sum(batch.computed for part in batches for batch in part)
        totals = replace(Totals.of(samples), computed=computed, too_long=too_long)
        parts = [Accumulate(part, totals, seed) for part, seed in zip(batches, seeds, strict=True)]
        self.ranks.tell(parts)
        self.add_gradient(parts[0])
        self.ranks.joined()

    def finish(self) -> UpdateStats:
        """Take the optimizer step with the gradient of what was accumulated.

        Raises:
            TrainingError: The loss or the gradient is not finite; no step was taken. Or another
                trainer process is gone.
        """
        self.ranks.tell([Finish()] * self.ranks.count)
        with self.phase("optimizer", None):
            return self.take_step()

    @property
    def accumulated(self) -> Totals:
        """What the optimizer step under way is made of so far."""
        return self._totals

    def add_gradient(self, part: Accumulate) -> None:
        """Do this rank's part of :meth:`accumulate`.

        Raises:
            TrainingError: A custom loss is at fault, memory ran out twice, or another trainer
                process is gone.
        """
        self._totals += part.totals
        todo = self._ask_reference(part)
        self._work += todo
        with self._training():
            while shortage := attempt(todo, self._backward):
                self.optimizer.zero_grad()
                self._sums = self.objective.empty_sums()
                todo = self._work = self.budget.halve(self._work, shortage, share=self._share)

    def _backward(self, work: Work) -> None:
        """Add the gradient of one micro-batch."""
        args = self.args
        batch = work.batch.to(self.accelerator.device)
        with self.phase("forward", batch):
            logprobs, entropy = self.forward(
                batch, args.temperature, entropy_gradient=args.entropy_coef > 0
            )
            loss, sums = self.objective(batch, logprobs, entropy, work.reference, work.mean_gap)
        with self.phase("backward", batch):
            self.accelerator.backward(loss)
        self._sums += sums

    def take_step(self) -> UpdateStats:
        """Do this rank's part of :meth:`finish`; all ranks end with the same parameters.

        Raises:
            TrainingError: As in :meth:`finish`, and on every rank alike.
        """
        sums, totals = self._sums, self._totals
        self._sums, self._totals = self.objective.empty_sums(), Totals()
        counted = torch.cat([sums, sums.new_tensor([self.budget.retries])])
        self._work, self.budget.retries = [], 0
        self.ranks.add_up(self._trained, counted)
        sums, retries = counted[:-1], int(counted[-1])
        factor = scale(totals, self.args)
        for parameter in self._trained:
            if parameter.grad is not None:
                parameter.grad.mul_(factor)
        norm = float(
            self.accelerator.clip_grad_norm_(self.model.parameters(), self.args.max_grad_norm)
        )
        stats = replace(self.objective.stats(sums, factor, norm, totals), oom_retries=retries)
        if not (is_finite(sums) and norm < float("inf")):
            self.optimizer.zero_grad()
            raise TrainingError(
                f"the loss ({stats.loss}) or its gradient norm ({norm}) is not finite; "
                "lower learning_rate, or look for rewards or logprobs gone wrong"
            )
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        self._update_reference()
        return stats

    def _ask_reference(self, part: Accumulate) -> list[Work]:
        """Return micro-batches with log p_ref of their trained tokens."""
        share = self._share
        work = self.budget.cut(map(Work, part.batches), share=share)
        if self.reference is None:
            return work
        with torch.no_grad(), self.reference.active(), self._reference_forward.active():
            while shortage := attempt(work, self._ask):
                work = self.budget.halve(work, shortage, share=share)
        gap = torch.zeros(1, dtype=torch.float64)
        for each in work:
            if each.reference is not None:
                sampled = each.batch.sampler_logprobs[each.batch.loss_mask]
                gap += (sampled - each.reference.cpu()).double().sum()
        if self.args.kl_penalty_type == "advantage":
            self.ranks.total(gap)
        for each in work:
            each.mean_gap = float(gap) / max(part.totals.tokens, 1)
        return work

    def _ask(self, work: Work) -> None:
        if work.reference is None:
            batch = work.batch.to(self.accelerator.device)
            with self.phase("reference", batch):
                work.reference, _ = self._reference_forward(batch, self.args.temperature)

    def _update_reference(self) -> None:
        every = self.args.reference_update_steps
        if self.reference is not None and every is not None:
            steps: int = self.scheduler.state_dict()["last_epoch"]
            if steps % every == 0:
                self.reference.follow()

    def logprobs(self, prompt_ids: list[int], token_ids: list[int]) -> list[float]:
        """Return the log-probability of each token after the prompt, at the run's temperature."""
        branch = Branch()
        branch.add_context(prompt_ids, 0)
        branch.add_sampled(token_ids, [0.0] * len(token_ids), [0] * len(token_ids), 0)
        [batch] = micro_batches([Sample(branch, 0.0)], len(branch))
        batch = batch.to(self.accelerator.device)
        with torch.no_grad():
            logprobs, _ = token_logprobs(self.model, batch, self.args.temperature)
        return [float(logprob) for logprob in logprobs]

    def fingerprint(self) -> str:
        """Return a short hash of what is not trained: another base model has another.

        It is made of each frozen parameter's name, shape and first values.
        """
        digest = hashlib.sha256()
        for name, parameter in self.accelerator.unwrap_model(self.model).named_parameters():
            if not parameter.requires_grad:
                head = parameter.detach().reshape(-1)[:64].float().cpu()
                digest.update(f"{name} {tuple(parameter.shape)}".encode())
                digest.update(head.numpy().tobytes())
        return digest.hexdigest()[:16]

    def save(self, folder: Path) -> None:
        """Save the adapter or the model in Hugging Face's format."""
        self.accelerator.unwrap_model(self.model).save_pretrained(folder)

    def trainable_state(self) -> dict[str, torch.Tensor]:
        """Return the trained parameters by name, on the CPU."""
        model = self.accelerator.unwrap_model(self.model)
        return {
            name: parameter.detach().cpu().clone()
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }

    def load_trainable_state(self, state: dict[str, torch.Tensor]) -> None:
        """Copy saved parameters back in place, so that an engine on this module sees them.

        Raises:
            ConfigError: The names or shapes are those of another model.
        """
        model = self.accelerator.unwrap_model(self.model)
        mine = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if {name: p.shape for name, p in mine.items()} != {n: t.shape for n, t in state.items()}:
            raise ConfigError(
                "the checkpoint's trained parameters are those of another model or adapter"
            )
        with torch.no_grad():
            for name, parameter in mine.items():
                parameter.copy_(state[name])

    @property
    def _trained(self) -> list[torch.nn.Parameter]:
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    @contextmanager
    def _training(self) -> Iterator[None]:
        """Dropout is on while training, and off whenever the engine generates."""
        self.model.train()
        try:
            with self.forward.active():
                yield
        finally:
            self.model.eval()


def _dtype(args: TrainerArgs) -> torch.dtype:
    return torch.bfloat16 if args.bf16 else torch.float32


def _with_lora(model: Any, args: TrainerArgs) -> Any:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=args.lora_rank,
        lora_alpha=args.lora_alpha,
        lora_dropout=args.lora_dropout,
        target_modules=lora_targets(model, args),
        task_type="CAUSAL_LM",
    )
    try:
        return get_peft_model(model, config)
    except ValueError as error:
        raise ConfigError(f"trainer.args.lora_target_modules: {error}") from error
