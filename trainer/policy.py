"""The model that learns: loading, LoRA, the optimizer, and one optimizer step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vf.inference.embedded.loading import load_module
from vf.traces.errors import ConfigError, TrainingError
from vf.traces.trace import Branch
from vf.trainer.batch import MicroBatch, Sample, micro_batches, trained_tokens
from vf.trainer.config import TrainerArgs
from vf.trainer.losses import LossFn, Ppo, importance_sampling
from vf.trainer.ranks import Ranks, Update, balance


@dataclass(frozen=True, slots=True)
class UpdateStats:
    """What one optimizer step did; means are over its trained tokens.

    Attributes:
        loss: Mean loss per trained token.
        grad_norm: L2 norm of the gradient before clipping.
        kl_v1: mean(log q − log p), the k1 estimate of KL(sampler ‖ learner), in nats.
        kl_v2: ½·mean((log q − log p)²), the k2 estimate, in nats.
        entropy: Mean entropy of the learner's distribution, in nats.
        tokens: Trained tokens.
        processed_tokens: All tokens in the forward passes, without padding.
    """

    loss: float
    grad_norm: float
    kl_v1: float
    kl_v2: float
    entropy: float
    tokens: int
    processed_tokens: int


def token_logprobs(
    model: Any, batch: MicroBatch, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the learner's log-probability and entropy at every trained token.

    This is the one place where predictions are shifted onto the tokens that they predict: the
    logits at position t − 1 give the probability of token t.

    Args:
        model: A causal language model.
        batch: B rows of L tokens.
        temperature: The sampler's; logits are divided by it.

    Returns:
        log p and entropy, both float32 ``[N]`` for the N trained tokens in row-major order; the
        entropy carries no gradient.
    """
    trained = batch.loss_mask[:, 1:]
    columns = trained.any(0).nonzero()[:, 0]  # positions whose prediction any row needs
    logits = model(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask,
        use_cache=False,
        logits_to_keep=columns,
    ).logits
    logits = logits[trained[:, columns]].float() / temperature
    logprobs = torch.log_softmax(logits, dim=-1)
    targets = batch.input_ids[:, 1:][trained]
    with torch.no_grad():
        entropy = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.gather(1, targets[:, None])[:, 0], entropy


class Policy:
    """The trained module with its optimizer and schedule.

    With several trainer processes each has one, and all stay alike: see
    :mod:`vf.trainer.ranks`. Rank 0 calls :meth:`update`, and the others take part.

    Args:
        model_name: A local folder or a hub name.
        args: ``[trainer.args]``.

    Raises:
        ConfigError: The model cannot be loaded, or a LoRA target module does not exist.
        TrainingError: Another trainer process is gone.
    """

    def __init__(self, model_name: str, args: TrainerArgs) -> None:
        from transformers import get_scheduler

        self.args = args
        self.ranks = Ranks()
        self.accelerator = self.ranks.accelerator
        model = load_module(model_name, torch.bfloat16 if args.bf16 else torch.float32)
        if args.use_lora:
            model = _with_lora(model, args)
        if args.gradient_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
            model.enable_input_require_grads()
        trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(
            trainable, lr=args.learning_rate, betas=(0.9, 0.95), weight_decay=args.weight_decay
        )
        name = (
            "constant_with_warmup"
            if args.lr_scheduler_type == "constant"
            else args.lr_scheduler_type
        )
        scheduler = get_scheduler(
            name,
            optimizer,
            num_warmup_steps=args.warmup_steps * args.num_substeps,
            num_training_steps=args.max_steps * args.num_substeps,
        )
        # Only placed on the device, never wrapped: the ranks sum their gradients themselves.
        self.model: Any = self.accelerator.prepare_model(model, evaluation_mode=True)
        self.optimizer, self.scheduler = self.accelerator.prepare(optimizer, scheduler)
        self.ranks.align(self._trained)
        self.model.eval()
        self.loss_fn: LossFn = (
            Ppo(args.clip_low, args.clip_high) if args.loss_fn == "ppo" else importance_sampling
        )

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

        The loss is the sum over trained tokens divided by their number, whatever the split into
        micro-batches and over trainer processes.

        Raises:
            TrainingError: The loss or the gradient is not finite; no step was taken. Or another
                trainer process is gone.
        """
        args, count = self.args, self.ranks.count
        seeds = torch.randint(2**62, (count,)).tolist() if count > 1 else [0]
        tokens, processed = trained_tokens(samples), sum(len(sample) for sample in samples)
        updates = [
            Update(
                micro_batches(share, args.micro_batch_tokens, args.micro_batch_size),
                tokens,
                processed,
                seed,
            )
            for share, seed in zip(balance(samples, count), seeds, strict=True)
        ]
        self.ranks.tell(updates)
        return self.take_step(updates[0])

    def take_step(self, update: Update) -> UpdateStats:
        """Do this rank's part of an update; all ranks end with the same parameters and statistics.

        Raises:
            TrainingError: As in :meth:`update`, and on every rank alike.
        """
        args, total = self.args, update.tokens
        sums = torch.zeros(4, dtype=torch.float64)
        with self._training():
            for batch in update.batches:
                batch = batch.to(self.accelerator.device)
                logprobs, entropy = token_logprobs(self.model, batch, args.temperature)
                sampler = batch.sampler_logprobs[batch.loss_mask]
                losses = self.loss_fn(logprobs, sampler, batch.advantages[batch.loss_mask])
                self.accelerator.backward(losses.sum() / total)
                gap = (sampler - logprobs).detach()
                sums += (
                    torch.stack(
                        [losses.detach().sum(), gap.sum(), gap.square().sum(), entropy.sum()]
                    )
                    .double()
                    .cpu()
                )
            self.ranks.add_up(self._trained, sums)
            norm = float(
                self.accelerator.clip_grad_norm_(self.model.parameters(), args.max_grad_norm)
            )
            loss, kl_v1, kl_v2, mean_entropy = (sums / total).tolist()
            if not (torch.isfinite(sums).all() and norm < float("inf")):
                self.optimizer.zero_grad()
                raise TrainingError(
                    f"the loss ({loss}) or its gradient norm ({norm}) is not finite; "
                    "lower learning_rate, or look for rewards or logprobs gone wrong"
                )
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
        return UpdateStats(
            loss, norm, kl_v1, 0.5 * kl_v2, mean_entropy, total, update.processed_tokens
        )

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
            yield
        finally:
            self.model.eval()


def _with_lora(model: Any, args: TrainerArgs) -> Any:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=args.lora_rank,
        lora_alpha=args.lora_alpha,
        lora_dropout=args.lora_dropout,
        target_modules=args.lora_target_modules or "all-linear",
        task_type="CAUSAL_LM",
    )
    try:
        return get_peft_model(model, config)
    except ValueError as error:
        raise ConfigError(f"trainer.args.lora_target_modules: {error}") from error
