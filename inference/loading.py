"""Loading a model's weights from a folder or the hub."""

from __future__ import annotations

from typing import Any

from vf.inference.tiny_path import resolve_model
from vf.runtime.errors import ConfigError


def load_module(name: str, dtype: Any, key: str = "model") -> Any:
    """Return a causal language model, on the CPU.

    Args:
        name: A folder, ``tiny``, or a hub name.
        dtype: Torch's, of the weights.
        key: The setting that names it, for the error.

    Raises:
        ConfigError: It cannot be loaded.
    """
    from transformers import AutoModelForCausalLM

    try:
        return AutoModelForCausalLM.from_pretrained(
            resolve_model(name), dtype=dtype, attn_implementation="sdpa"
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"{key} = {name!r}: cannot load it: {error}") from error
