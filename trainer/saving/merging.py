"""Checkpoints read back and checked: whole models, adapters, and adapters merged into models."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from vf.inference.model_files import adapts_whole, check_weights, model_class
from vf.runtime.errors import ConfigError
from vf.trainer.saving.checkpoint_files import ADAPTER_WEIGHTS

_HALF = re.compile(r"(\.lora_(?:embedding_)?)[AB]\b")  # of an update B·A


def load_model(name: str, dtype: torch.dtype | str, *, whole: bool = False) -> Any:
    """Return a causal language model on the CPU, all of whose weights were found.

    transformers alone would fill missing weights with random numbers and warn.

    Args:
        name: A folder or a hub name.
        dtype: The dtype of the weights; ``auto`` leaves them as they are stored.
        whole: Whether what sees is loaded also where the text part can be had alone.

    Raises:
        ConfigError: If it cannot be loaded, or weights are missing.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    check_weights(name)
    try:
        config = AutoConfig.from_pretrained(name)
        sees = whole or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING
        model, report = model_class(sees=sees).from_pretrained(
            name, dtype=dtype, output_loading_info=True
        )
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise ConfigError(f"cannot load the model {name}: {_first_line(error)}") from error
    if lost := sorted(report["missing_keys"]):
        raise ConfigError(
            f"the model {name} is damaged: {len(lost)} weights are missing, {lost[0]} for one"
        )
    return model


def read_adapter(folder: Path) -> dict[str, torch.Tensor]:
    """Return an adapter's own tensors by PEFT's names, on the CPU.

    Where PEFT adapts the embedding or the head, it also saves their base weights. These are left
    out: they never changed, and can be larger than all the rest.

    Raises:
        ConfigError: If the adapter is incomplete, or holds values that are not finite.
    """
    path = folder / ADAPTER_WEIGHTS
    check_weights(folder)
    try:
        tensors = load_file(path)
    except OSError as error:
        raise ConfigError(f"cannot read the adapter {path}: {_first_line(error)}") from error
    # The adapters of two tensors in one module are nested: "base_layer" is in some own names.
    tensors = {name: tensor for name, tensor in tensors.items() if ".lora_" in name}
    halves = Counter(_HALF.sub(r"\1", name) for name in tensors)
    if not halves or set(halves.values()) != {2}:
        raise ConfigError(f"the adapter {path} is damaged: an update lacks one of its two halves")
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise ConfigError(f"the adapter {path} holds NaN or infinity, in {name}")
    return tensors


def merge(folder: Path, base: str, dtype: torch.dtype) -> tuple[Any, bool]:
    """Return the base model with an adapter merged into it, in place: W + (α / r)·B·A.

    Where the head shares its weights with the embedding and only one of them is adapted, merging
    into the shared weights would change the other too. There the head gets weights of its own.

    Args:
        folder: The adapter's.
        base: A folder or a hub name.
        dtype: The dtype of the merged weights. The update is computed in the adapter's own
            precision.

    Returns:
        The model on the CPU, and whether its head was untied from the embedding.

    Raises:
        ConfigError: If one is damaged or cannot be loaded, or they do not fit each other.
    """
    from peft import PeftConfig, get_peft_model, set_peft_model_state_dict

    tensors = read_adapter(folder)
    model = load_model(base, dtype, whole=adapts_whole(folder))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice on tied weights, which _untie handles
        try:
            config = PeftConfig.from_pretrained(str(folder))
            config.base_model_name_or_path = base
            adapted = get_peft_model(model, config)
            result = set_peft_model_state_dict(adapted, tensors)
        except (OSError, ValueError, TypeError, KeyError, RuntimeError) as error:
            raise ConfigError(
                f"the adapter {folder} does not fit the base model {base}: {_first_line(error)}"
            ) from error
        lost = [name for name in result.missing_keys if ".lora_" in name] + result.unexpected_keys
        if lost:
            raise ConfigError(
                f"the adapter {folder} does not fit the base model {base}: {len(lost)} tensors "
                f"are missing or have no place there, {lost[0]} for one"
            )
        untied = _untie(adapted.get_base_model())
        return adapted.merge_and_unload(), untied


def _untie(model: Any) -> bool:
    """Give a tied head weights of its own if it or the embedding is adapted; return if it was."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    ends = [model.get_input_embeddings(), model.get_output_embeddings()]
    adapted = [isinstance(end, BaseTunerLayer) for end in ends]
    if not any(adapted):
        return False
    embedding, head = (
        end.get_base_layer() if is_adapted else end
        for end, is_adapted in zip(ends, adapted, strict=True)
    )
    if head.weight is not embedding.weight:
        return False
    head.weight = torch.nn.Parameter(head.weight.detach().clone(), requires_grad=False)
    for config in (model.config, model.config.get_text_config()):
        config.tie_word_embeddings = False
    return True


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).strip().splitlines()[0]
