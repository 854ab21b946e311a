"""The flags that a run gives to its vLLM server."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vf.inference.settings import VllmSettings
from vf.inference.supports import TIES
from vf.inference.vllm.adapter_formats import AS_PEFT, AdapterFormat
from vf.inference.vllm.publish_methods import swaps_in_place
from vf.runtime.errors import ConfigError

SHARED_GPU_SHARE = 0.45  # of the memory, where the trainer is on the same GPU
INSIDE_A_REPLICA = ("tensor_parallel_size", "pipeline_parallel_size")
# Images are resized by Pillow, as here; torchvision gives other pixels.
AS_HERE = {"use_fast": False}
RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
MOST_LOGPROBS = 20  # log-probabilities of a token that vLLM returns by default


@dataclass(frozen=True)
class Adapters:
    """The LoRA adapters that a server holds.

    Attributes:
        rank: The rank of each.
        versions: How many of them requests may use at once: the newest, and those that requests
            under way began with. A request whose adapter has no place waits for one.
        form: The format in which each is written.
    """

    rank: int
    versions: int = 1
    form: AdapterFormat = AS_PEFT


def server_args(
    settings: VllmSettings,
    *,
    method: str,
    model: str,
    name: str,
    host: str,
    port: str,
    max_seq_len: int,
    adapters: Adapters | None,
    cpu: bool,
    shared_gpu: bool,
    copy: Path | None = None,
    images: bool = False,
) -> dict[str, Any]:
    """Return the server's flags by name; what ``[inference.args]`` says takes precedence.

    Args:
        settings: ``[inference]``.
        method: The way weights are published.
        model: Folder of the base model.
        name: The model's name in requests.
        host: The address that the server listens on.
        port: Its port.
        max_seq_len: Tokens in one context at most.
        adapters: The adapters that are loaded at run time, or None.
        cpu: Whether there is no GPU.
        shared_gpu: Whether the trainer is on the same GPU.
        copy: Weights to serve in place of the model's.
        images: Whether prompts hold images.

    Raises:
        ConfigError: If the GPUs do not fit the parallel sizes.
    """
    args: dict[str, Any] = {
        "model": model,
        "served_model_name": name,
        "host": host,
        "port": port,
        "max_model_len": max_seq_len,
        "logprobs_mode": "processed_logprobs",
        # Otherwise the model's generation_config.json filters what a request does not name.
        "generation_config": "vllm",
    }
    if copy is not None:
        args |= {"model": str(copy), "tokenizer": model}
    if cpu:
        # A seeded request whose prompt is prefilled in parts kills vLLM 0.32 on a CPU: it
        # rewinds the generator, which a CPU's cannot.
        args |= {"dtype": "float32", "enforce_eager": True, "enable_chunked_prefill": False}
    if shared_gpu:
        args["gpu_memory_utilization"] = SHARED_GPU_SHARE
    if adapters is not None:
        args |= {
            "enable_lora": True,
            "max_lora_rank": rank_bucket(adapters.rank),
            "max_loras": adapters.versions,
            "max_cpu_loras": adapters.versions + 1,  # with the one that is being loaded
        }
    if method == "nccl":
        args["weight_transfer_config"] = {"backend": "nccl"}
    if swaps_in_place(method, settings) or images:
        args["enable_scale_out"] = True  # for its tokens-in, tokens-out API
    if images:
        args["mm_processor_kwargs"] = AS_HERE
    if settings.sleep:
        args["enable_sleep_mode"] = True
    return args | given(settings) | parallel_args(settings)


def given(settings: VllmSettings) -> dict[str, Any]:
    """Return ``[inference.args]`` with names as Python writes them."""
    return {name.lstrip("-").replace("-", "_"): value for name, value in settings.args.items()}


def each_server(settings: VllmSettings) -> list[VllmSettings]:
    """Return the settings of every single server of an engine."""
    if settings.base_url:
        return [settings]
    if settings.base_urls:
        return [
            settings.model_copy(update={"base_url": url, "base_urls": []})
            for url in settings.base_urls
        ]
    size = len(settings.gpus or []) // settings.replicas
    return [
        settings.model_copy(
            update={
                "replicas": 1,
                "gpus": settings.gpus and settings.gpus[size * number : size * (number + 1)],
                "port": settings.port and settings.port + number,
            }
        )
        for number in range(settings.replicas)
    ]


def parallel_args(settings: VllmSettings) -> dict[str, Any]:
    """Return the flags that make a server use all of ``inference.gpus``.

    GPUs beyond what one replica of the model needs serve further replicas, by data parallelism
    behind one API server: it spreads requests over them, and what controls the engine reaches all
    of them. With an API server for each, as ``vllm serve`` would start, an adapter would be known
    to the one that was asked to load it.

    Raises:
        ConfigError: If the number of GPUs does not fit the sizes in ``inference.args``.
    """
    args = given(settings)
    replicas = whole_number(args, "data_parallel_size") if "data_parallel_size" in args else None
    if settings.gpus is not None:
        per_replica = math.prod(whole_number(args, size) for size in INSIDE_A_REPLICA)
        needed = per_replica * (replicas or max(1, len(settings.gpus) // per_replica))
        if settings.gpus and needed != len(settings.gpus):
            named = f"inference.gpus names {len(settings.gpus)} GPUs"
            if settings.gpus_per_replica is not None:
                named = f"inference.gpus_per_replica = {settings.gpus_per_replica}"
            sizes = [
                f"inference.args.{name} = {args[name]}"
                for name in (*INSIDE_A_REPLICA, "data_parallel_size")
                if name in args
            ]
            raise ConfigError(
                f"{named}, but the server would use "
                f"{needed}: {', '.join(sizes)}. Change one of them; without data_parallel_size, "
                "what the other two leave over serves further replicas"
            )
        replicas = needed // per_replica
    if replicas is None or replicas == 1:
        return {}
    return {"data_parallel_size": replicas, "api_server_count": 1}


def whole_number(args: Mapping[str, Any], name: str) -> int:
    """Return a size among ``inference.args``, 1 if it is not there.

    Raises:
        ConfigError: If it is not a whole number from 1.
    """
    size = args.get(name, 1)
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ConfigError(f"inference.args.{name} = {size!r} is not a whole number from 1")
    return size


def rank_bucket(rank: int) -> int:
    """Return the smallest --max-lora-rank that vLLM accepts for an adapter's rank."""
    return next((size for size in (8, 16, 32, 64, 128, 256, 320, 512) if size >= rank), rank)


def returning_experts(settings: VllmSettings, *, cpu: bool) -> VllmSettings:
    """Return a server's settings with which it says which experts it used.

    A server that is already running must have been started so; its first answer shows that.

    Args:
        settings: ``[inference]``.
        cpu: Whether the server runs on a CPU.

    Raises:
        ConfigError: If it does: vLLM's Model Runner V2, which alone records experts, needs Triton.
    """
    if settings.urls:
        return settings
    if cpu:
        raise ConfigError(
            "trainer.args.router_replay: vLLM records experts in its Model Runner V2 alone, which "
            'needs a GPU; on a CPU, set inference.engine = "embedded", or router_replay = "off"'
        )
    update = {"args": {"enable_return_routed_experts": True} | settings.args}
    return settings.model_copy(update=update | {"env": {RUNNER: "1"} | settings.env})


def returning_supports(settings: VllmSettings, top_ks: Iterable[int]) -> VllmSettings:
    """Return a server's settings with which it tells as many log-probabilities as ``top_k`` needs.

    A server that is already running must have been started so; it refuses a request otherwise.

    Args:
        settings: ``[inference]``.
        top_ks: The ``top_k`` of all environments; 0 is none.
    """
    most = max(top_ks, default=0)
    if settings.urls or most + TIES <= MOST_LOGPROBS or not most:
        return settings
    limit = {"max_logprobs": most + TIES}
    return settings.model_copy(update={"args": limit | settings.args})
