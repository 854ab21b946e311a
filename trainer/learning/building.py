"""The model as it is loaded, with its adapter, and its optimizer."""

from __future__ import annotations

from typing import Any

import torch

from vf.inference.model_files import load_module
from vf.runtime.errors import ConfigError
from vf.trainer.learning.lora_targets import lora_targets
from vf.trainer.settings.config import TrainerArgs


def build_model(name: str, args: TrainerArgs) -> Any:
    """Load the model that learns, with an adapter if one is trained, on the CPU.

    Args:
        name: A local folder or a hub name.
        args: ``[trainer.args]``.

    Raises:
        ConfigError: It cannot be loaded, or a LoRA target module does not exist.
    """
    model = load_module(name, weights_dtype(args))
    if args.use_lora:
        model = _with_lora(model, args)
    if args.gradient_checkpointing is True:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    return model


def build_optimizer(model: Any, args: TrainerArgs) -> torch.optim.Optimizer:
    """Return AdamW over the trained parameters (Loshchilov & Hutter 2019, arXiv:1711.05101)."""
    return torch.optim.AdamW(
        [parameter for parameter in model.parameters() if parameter.requires_grad],
        lr=0.0,  # each step sets its own
        betas=(args.betas[0], args.betas[1]),
        eps=args.eps,
        weight_decay=args.weight_decay,
    )


def weights_dtype(args: TrainerArgs) -> torch.dtype:
    """Return in what the weights are held that no adapter adds."""
    return torch.bfloat16 if args.bf16 is True else torch.float32


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
