"""What bitsandbytes does: AdamW with moments of 8 bits, and frozen weights of 4.

Dettmers et al. 2022, arXiv:2110.02861 (the optimizer), and 2023, arXiv:2305.14314 (QLoRA).
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

import torch

from vf.runtime.errors import ConfigError
from vf.trainer.processes.launch import is_fsdp, zero_stage
from vf.trainer.settings.config import TrainerArgs

EIGHT_BITS = 'trainer.args.optim = "adamw_8bit"'
FOUR_BITS = "trainer.args.load_in_4bit = true"
INSTALL = "`pip install 'vf-rl[quantized]'`"


def check_quantized(args: TrainerArgs) -> None:
    """See that what the settings ask for is possible here.

    Raises:
        ConfigError: If bitsandbytes is missing, or the launcher's settings leave no room for it.
    """
    fsdp = is_fsdp()
    if fsdp or zero_stage() is not None:
        _check_shared(args, "FSDP" if fsdp else "DeepSpeed")
    requested = {EIGHT_BITS: args.optim == "adamw_8bit", FOUR_BITS: args.load_in_4bit}
    for setting, is_asked in requested.items():
        if is_asked and find_spec("bitsandbytes") is None:  # not imported yet: that takes seconds
            raise ConfigError(f"{setting} needs bitsandbytes, which is not installed: {INSTALL}")


def _check_shared(args: TrainerArgs, how: str) -> None:
    if args.load_in_4bit:
        raise ConfigError(
            f"trainer.args.load_in_4bit = true: {how} cannot share weights of 4 bits among "
            "processes; leave trainer.accelerate_config out, so that each holds them whole"
        )
    if args.optim == "adamw_offload":
        instead = "fsdp_offload_params: true" if how == "FSDP" else "offload_optimizer_device: cpu"
        raise ConfigError(
            f'trainer.args.optim = "adamw_offload": {how} offloads by itself; set optim = "adamw", '
            f"and {instead} in the Accelerate config"
        )
    if args.optim == "adamw_8bit":
        raise ConfigError(
            f'trainer.args.optim = "adamw_8bit": {how} shares the moments among processes, which '
            'needs them in float32; set optim = "adamw"'
        )


def bitsandbytes(setting: str) -> Any:
    """Return the package.

    Args:
        setting: The setting that needs it, for the error.

    Raises:
        ConfigError: If it is not installed, or has nothing for this machine.
    """
    try:
        return importlib.import_module("bitsandbytes")
    except (ImportError, OSError, RuntimeError) as error:
        raise ConfigError(
            f"{setting} needs bitsandbytes, which cannot be imported ({error}): {INSTALL}"
        ) from error


def keep_packing(model: Any) -> None:
    """Have a base of 4 bits compute the same in training and in evaluation.

    On CPUs with AVX512-BF16, bitsandbytes packs the weights again at the first evaluation, rounds
    their constants on the way, and fails where a layer's width is no multiple of its blocks.

    Args:
        model: The model, with layers of bitsandbytes'.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def four_bits(dtype: torch.dtype) -> Any:
    """Return transformers' settings for a base of 4 bits: NF4, with quantised constants.

    Args:
        dtype: In which it computes.
    """
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )
