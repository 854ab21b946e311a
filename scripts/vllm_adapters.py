"""Load adapters as vf-rl publishes them into vLLM's own models, and compare weight by weight.

Run by an interpreter that has vLLM, with a folder of models: see `check_vllm_calls.py` and
`tests/inference/vllm/test_adapter_loading.py`. Each model has `base`, `merged` (the base with its
adapter added to its weights) and `adapter`. vLLM reads the first two as any checkpoint. Their
difference, in vLLM's own layout, is what the adapter has to be once it is in vLLM's buffers.
Nothing is computed with the models, so mixtures of experts need no GPU either.

Prints a line of JSON for each model: how many weights the adapter changes, which of them vLLM does
not change with it, and by how much the others are off. Fails if any model's adapter does not fit.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch
import vllm
from safetensors.torch import load_file
from transformers.utils import is_torchvision_available
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import (
    destroy_model_parallel,
    init_distributed_environment,
    initialize_model_parallel,
)
from vllm.engine.arg_utils import EngineArgs
from vllm.lora.layers import FusedMoEWithLoRA, VocabParallelEmbeddingWithLoRA
from vllm.lora.request import LoRARequest
from vllm.lora.worker_manager import LRUCacheWorkerLoRAManager
from vllm.model_executor.layers.fused_moe import MoERunner
from vllm.model_executor.layers.fused_moe import config as moe
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.model_executor.models import registry

RANK = 8  # the smallest of those that vLLM has room for
NOISE = 1e-6  # of sums of a weight and its update in float32


def engine_config(folder: Path) -> VllmConfig:
    """Return vLLM's config of a model that is served with adapters."""
    return EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=64,
        max_num_batched_tokens=64,
        max_num_seqs=1,
        enable_lora=True,
        max_lora_rank=RANK,
        limit_mm_per_prompt={"image": 0, "video": 0, "audio": 0},
    ).create_engine_config()


def loaded(model: Any, folder: Path) -> dict[str, torch.Tensor]:
    """Return a model's parameters after it has read a checkpoint."""

    def tensors() -> Iterator[tuple[str, torch.Tensor]]:
        for file in sorted(folder.glob("*.safetensors")):
            yield from load_file(file).items()

    model.load_weights(tensors())
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def changes(manager: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield what the first adapter adds to each weight, by the name of vLLM's parameter."""

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return b[0] @ a[0]  # [E, out, r] @ [E, r, in], with E = 1 for a linear layer

    for name, module in manager.modules.items():
        if isinstance(module, FusedMoEWithLoRA):
            for part in ("w13", "w2"):
                stacks = [getattr(module, f"{part}_lora_{half}_stacked") for half in "ab"]
                slices = [product(a, b) for a, b in zip(*stacks, strict=True)]
                yield f"{name}.routed_experts.{part}_weight", torch.cat(slices, 1)
        elif isinstance(module, VocabParallelEmbeddingWithLoRA):
            assert not module.lora_b_stacked.any(), name
        elif isinstance(module.lora_a_stacked, tuple):
            pairs = zip(module.lora_a_stacked, module.lora_b_stacked, strict=True)
            yield f"{name}.weight", torch.cat([product(a, b)[0] for a, b in pairs])
        else:  # the head
            yield f"{name}.weight", product(module.lora_a_stacked, module.lora_b_stacked)[0]


def compare(folder: Path) -> dict[str, Any]:
    """Return how an adapter in vLLM differs from what it is."""
    config = engine_config(folder / "base")
    with set_current_vllm_config(config):
        destroy_model_parallel()
        initialize_model_parallel()  # with a group for experts, if the model has some
        model = initialize_model(config)
        before, after = loaded(model, folder / "base"), loaded(model, folder / "merged")
        for module in model.modules():
            if isinstance(module, MoERunner):
                experts = module.routed_experts
                experts.quant_method._init_moe_kernel(experts)
        manager = LRUCacheWorkerLoRAManager(config, torch.device("cpu"), {})
        manager.create_lora_manager(model, config)
        manager.add_adapter(LoRARequest("a", 1, str(folder / "adapter")))
    wanted = {name: after[name] - value for name, value in before.items()}
    wanted = {name: change for name, change in wanted.items() if change.abs().max() > NOISE}
    unchanged, worst = sorted(wanted), 0.0
    for name, change in changes(manager._adapter_manager):
        expected = wanted.get(name)
        if expected is None:
            worst = max(worst, float(change.abs().max()))
            continue
        change, expected = change[: len(expected)], expected[: len(change)]  # of a padded head
        if change.abs().max() > 0:
            unchanged.remove(name)
            worst = max(worst, float((change - expected).abs().max()))
    return {"changed": len(wanted), "unchanged": unchanged, "worst": worst}


def leave_out_images() -> None:
    """Let modules that process images be imported where torchvision is not installed."""
    if not is_torchvision_available():
        sys.modules["torchvision.transforms.v2"] = MagicMock()


def main() -> int:
    """Compare the models of a folder."""
    print(f"  adapters of families ({vllm.__version__})", flush=True)
    leave_out_images()
    # vLLM refuses experts without a gate on a CPU.
    moe.current_platform = MagicMock(wraps=moe.current_platform, is_cuda_alike=lambda: True)
    registry._run_in_subprocess = lambda inspect: inspect()  # which takes ten seconds
    unfit = 0
    with tempfile.TemporaryDirectory() as scratch:
        init_distributed_environment(1, 0, f"file://{scratch}/store", 0, "gloo")
        for folder in sorted(Path(sys.argv[1]).iterdir()):
            try:
                outcome = compare(folder)
            except Exception as error:
                outcome = {"error": f"{type(error).__name__}: {error}"}
            if not outcome.get("changed") or outcome["unchanged"] or outcome["worst"] > NOISE:
                unfit += 1
            print(json.dumps({"family": folder.name, **outcome}), flush=True)
    return int(unfit > 0)


if __name__ == "__main__":
    sys.exit(main())
