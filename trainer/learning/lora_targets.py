"""From what LoRA is meant to train to the names of the layers."""

from __future__ import annotations

from typing import Any

import torch

from vf.runtime.errors import ConfigError
from vf.trainer.settings.config import TrainerArgs


def lora_targets(model: Any, args: TrainerArgs) -> list[str]:
    """Return the ``target_modules`` for PEFT.

    A linear layer is the head if it gives the logits, attention if its path has a part that
    contains ``attn`` or ``attention``, and else counts with the MLP (experts, gates and state-space
    mixers too). ``lora_target_modules`` is returned as it is.

    Raises:
        ConfigError: The model has no layer of a wanted kind.
    """
    if args.lora_target_modules is not None:
        return args.lora_target_modules
    head = model.get_output_embeddings()
    kinds: dict[str, set[str]] = {"train_attn": set(), "train_mlp": set(), "train_unembed": set()}
    for name, module in model.named_modules():
        if module is head:
            kinds["train_unembed"].add(name)
        elif isinstance(module, torch.nn.Linear):
            attention = any("attn" in part or "attention" in part for part in name.split("."))
            kinds["train_attn" if attention else "train_mlp"].add(name)
    asked = zip(kinds.items(), (args.train_attn, args.train_mlp, args.train_unembed), strict=True)
    wanted: set[str] = set()
    for (kind, names), is_asked in asked:
        if is_asked:
            if not names:
                raise ConfigError(
                    f"trainer.args.{kind}: {type(model).__name__} has no such linear layer; set "
                    "lora_target_modules"
                )
            wanted |= names
    # A layer's own name means it in every block, unless another kind has one of that name.
    others = {name.rpartition(".")[2] for name in set().union(*kinds.values()) - wanted}
    own = {name.rpartition(".")[2] for name in wanted}
    return sorted(wanted if own & others else own)
