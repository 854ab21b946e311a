"""The ways to publish weights to a vLLM server, and which one fits a run."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence

from vf.inference.settings import VllmSettings
from vf.runtime.errors import ConfigError

METHODS = {
    "lora": "each version of the adapter is loaded by its name",
    "disk": "new weights are written to disk and read again by the server",
    "nccl": "new weights go from GPU to GPU by NCCL, or through the disk if that cannot start",
}
FIXED = "fixed"  # the method of an engine whose weights never change


def choose_method(
    settings: VllmSettings, *, use_lora: bool, cpu: bool, trainer_gpus: Sequence[int] = ()
) -> str:
    """Return how weights are published: ``lora``, ``disk`` or ``nccl``.

    Args:
        settings: ``[inference]``.
        use_lora: Whether an adapter is trained.
        cpu: Whether there is no GPU.
        trainer_gpus: The trainer's. NCCL cannot have two processes on one GPU.

    Raises:
        ConfigError: If what the settings ask for does not fit what is trained.
    """
    publish = settings.publish
    if settings.keep_cache and use_lora:
        raise ConfigError(
            "inference.keep_cache is for weights that change in place; each version of an adapter "
            "has a cache of its own. Remove it, or set trainer.args.use_lora = false"
        )
    shared = settings.gpus is None or bool({*settings.gpus} & {*trainer_gpus})
    if publish == "auto":
        if use_lora:
            return "lora"
        apart = not settings.urls and not cpu and not shared
        return "nccl" if apart and _reaches_by_nccl() else "disk"
    if (publish == "lora") != use_lora:
        raise ConfigError(
            f'inference.publish = "{publish}" does not fit trainer.args.use_lora = '
            f'{str(use_lora).lower()}; leave it at "auto"'
        )
    if publish != "nccl":
        return publish
    if cpu:
        raise ConfigError('inference.publish = "nccl" needs GPUs; set it to "auto"')
    if shared:
        raise ConfigError(
            'inference.publish = "nccl" needs GPUs of the server\'s own: name them with '
            "inference.gpus, and the trainer's with trainer.gpus"
        )
    if not _reaches_by_nccl():
        raise ConfigError(
            'inference.publish = "nccl" needs vLLM in the trainer\'s environment too: '
            "pip install 'vf-rl[vllm]', or set publish = \"disk\""
        )
    return publish


def swaps_in_place(method: str, settings: VllmSettings) -> bool:
    """Return whether weights change under running requests, so that every token has a version."""
    return method in ("disk", "nccl") and not settings.urls


def _reaches_by_nccl() -> bool:
    return importlib.util.find_spec("vllm") is not None  # whose code the trainer's side of it is
