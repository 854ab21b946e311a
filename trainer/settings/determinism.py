"""Where ``deterministic = true`` cannot hold. Importing this module loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vf.inference.model import FILTERS, filters_used
from vf.inference.settings import EngineSettings, VllmSettings
from vf.runtime.errors import ConfigError

SWITCH = "VLLM_BATCH_INVARIANT"  # read by vLLM's `envs.py` (0.32), as a number


def check_deterministic(
    trainer: Any,
    inference: EngineSettings,
    envs: Mapping[str, Mapping[str, Any]],
) -> None:
    """Refuse settings with which log-probabilities depend on more than their sequence.

    Args:
        trainer: ``[trainer]``.
        inference: ``[inference]``.
        envs: The settings of ``[trainer.args]`` that environments have set themselves, by table.

    Raises:
        ValueError: If a setting does; says which, and what to set.
    """
    args = trainer.args
    if not args.deterministic:
        return
    if trainer.accelerate_config is not None or len(trainer.devices or [0]) > 1:
        raise ValueError(
            "trainer.args.deterministic = true is for one trainer process: several add gradients "
            "up in an order of their own; set trainer.gpus = 1 without accelerate_config"
        )
    if inference.urls:
        raise ValueError(
            "trainer.args.deterministic = true, but a server that is already running cannot be "
            "made batch-invariant: let the run start it (remove inference.base_url or "
            "base_urls), or set deterministic = false"
        )
    if inference.started is not None and inference.started.env.get(SWITCH, "1") != "1":
        raise ValueError(
            f"trainer.args.deterministic = true sets {SWITCH}=1, and inference.env says "
            "otherwise: remove one"
        )
    wrong = [
        (
            args.bf16 is True and inference.in_process,
            "bf16 = true rounds sums as they come; set bf16 = false",
        ),
        (args.load_in_4bit, "load_in_4bit = true has kernels of its own; set it to false"),
        (not args.packing, "packing = false pads rows, which the engine does not; set it to true"),
        (args.lora_dropout > 0, "lora_dropout > 0 is not in what is sampled; set it to 0"),
        (not args.disable_dropout, "disable_dropout = false trains with noise; set it to true"),
        (
            bool(args.max_steps_off_policy),
            "max_steps_off_policy > 0 lets timing decide which weights sample; set it to 0",
        ),
        (
            bool(args.stream_minibatches),
            "stream_minibatches = true adds gradients up as rollouts end; set it to false",
        ),
        (
            args.oversample > 1,
            "oversample > 1 lets timing decide which rollouts are kept; set it to 1",
        ),
        (
            args.max_refill > 0 and len(envs) > 1,
            "max_refill > 0 lets timing decide which environment has the fresh groups; set it to 0",
        ),
    ]
    problems = [f"trainer.args.{reason}" for holds, reason in wrong if holds]
    if not inference.in_process:
        why = "leaves out tokens that vLLM tells only beside a top_k; set one, or leave it out"
        tables = {"trainer.args": args} | {
            table: args.model_copy(update=own)
            for table, own in envs.items()
            if own.keys() & FILTERS.keys()
        }
        problems += [
            f"{table}.{name} {why}"
            for table, own_args in tables.items()
            if not own_args.top_k
            for name in filters_used(own_args)
        ]
    if problems:
        raise ValueError(f"trainer.args.deterministic = true cannot hold: {'; '.join(problems)}")


def batch_invariant(settings: VllmSettings, *, cpu: bool) -> VllmSettings:
    """Return a server's settings with vLLM's batch-invariant mode, which has kernels for GPUs only.

    Args:
        settings: ``[inference]``.
        cpu: Whether the server runs on a CPU.

    Raises:
        ConfigError: If the server runs on a CPU.
    """
    if cpu:
        raise ConfigError(
            "trainer.args.deterministic = true, but vLLM's batch-invariant kernels need a GPU (for "
            "NVIDIA, vLLM asks for compute capability 9.0): on a CPU, set inference.engine = "
            '"embedded", which has its own, or deterministic = false'
        )
    return settings.model_copy(update={"env": settings.env | {SWITCH: "1"}})
