"""The model as it is loaded, with its adapter, and its optimizer."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable
from typing import Any

import torch

from vf.inference.model_files import load_module
from vf.runtime.errors import ConfigError
from vf.trainer.learning.model.lora_targets import lora_config, lora_targets
from vf.trainer.learning.model.precision import compute_dtype, exact_ends
from vf.trainer.learning.model.quantized import EIGHT_BITS, bitsandbytes, four_bits, keep_packing
from vf.trainer.settings.config import TrainerArgs


def build_model(
    name: str,
    args: TrainerArgs,
    *,
    device: torch.device | None = None,
    sharded: bool = False,
    empty: bool = False,
) -> Any:
    """Load the model that learns, with an adapter if one is trained, on the CPU.

    With ``bf16`` it is in bfloat16, for what is trained has float32 copies elsewhere
    (:mod:`vf.trainer.learning.sharding.master_weights`). Where it will be sharded, what is trained
    is float32, and is rounded while it computes.

    Args:
        name: A local folder or a hub name.
        args: ``[trainer.args]``.
        device: The device on which a base of 4 bits is made.
        sharded: Whether FSDP or DeepSpeed will hold it.
        empty: Make it on the meta device, without reading its weights.

    Raises:
        ConfigError: If it cannot be loaded, or a LoRA target module does not exist.
    """
    dtype = compute_dtype(args)
    options: dict[str, Any] = {"device_map": "meta"} if empty else {}
    if args.load_in_4bit:
        options["quantization_config"] = four_bits(dtype)
        options["device_map"] = {"": device or torch.device("cpu")}
    whole = sharded and not args.use_lora
    dtype_loaded = torch.float32 if whole else dtype
    model = load_module(name, dtype_loaded, sees=args.images, **options)
    if args.load_in_4bit:
        keep_packing(model)
    if dtype != torch.float32:
        exact_ends(model)
    if not args.use_lora:
        if not args.train_vision:
            freeze_rest(model)
    else:
        model = with_lora(model, args)
        if not sharded:
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.data = parameter.data.to(dtype)
    if args.gradient_checkpointing is True:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    return model


def build_optimizer(
    trained: Iterable[torch.nn.Parameter], args: TrainerArgs
) -> torch.optim.Optimizer:
    """Return AdamW over what is trained (Loshchilov & Hutter 2019, arXiv:1711.05101).

    Args:
        trained: The trained parameters, in float32.
        args: ``[trainer.args]``.

    Raises:
        ConfigError: If bitsandbytes is missing.
    """
    settings: dict[str, Any] = {
        "lr": 0.0,  # each step sets its own
        "betas": (args.betas[0], args.betas[1]),
        "eps": args.eps,
        "weight_decay": args.weight_decay,
    }
    if args.optim == "adamw_8bit":
        optimizer: torch.optim.Optimizer = bitsandbytes(EIGHT_BITS).optim.AdamW8bit(
            trained, **settings
        )
        return optimizer
    # In the host's memory, one pass over it is what counts.
    fused = True if args.optim == "adamw_offload" else None
    return torch.optim.AdamW(trained, fused=fused, **settings)


def check_moments(kept: Collection[str], args: TrainerArgs) -> None:
    """See that an optimizer's state can be loaded into the one that the settings ask for.

    Args:
        kept: The names of what it keeps of a parameter; none before its first step.
        args: ``[trainer.args]``.

    Raises:
        ConfigError: If only one of the two has moments of 8 bits.
    """
    eight = args.optim == "adamw_8bit"
    if kept and ("exp_avg" in kept) == eight:
        kept = "float32" if eight else "8 bits"
        raise ConfigError(
            f"trainer.args.optim = {args.optim!r}, but the checkpoint's moments are in {kept}; set "
            "it as the run began"
        )


def freeze_rest(model: Any) -> None:
    """Train the text part of a composite alone, not what sees."""
    trained = {*model.get_decoder().parameters(), *model.get_output_embeddings().parameters()}
    for parameter in model.parameters():
        parameter.requires_grad_(parameter in trained)


def with_lora(model: Any, args: TrainerArgs) -> Any:
    """Return a model with an adapter inside its layers, which is what trains.

    Args:
        model: A causal language model of transformers'. It is changed.
        args: ``[trainer.args]``.

    Raises:
        ConfigError: If what is to be adapted does not exist, or cannot be adapted.
    """
    from peft import get_peft_model

    config = lora_config(args, lora_targets(model, args))
    with warnings.catch_warnings():
        # PEFT 0.21 asks transformers for something by its former name.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        try:
            return get_peft_model(model, config)
        except ValueError as error:
            raise ConfigError(f"trainer.args.lora_target_modules: {error}") from error
