"""How much memory a vLLM server will need on each of its GPUs, by the model's shape and its flags.

vLLM takes a share of the GPU, measures what weights and one large batch need of it, and makes the
key-value cache of the rest (``determine_available_memory`` of its GPU worker, 0.32 and 0.33). The
defaults here are those of its command line.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

from vf.inference.settings import VllmSettings
from vf.inference.vllm.server_args import (
    INSIDE_A_REPLICA,
    SHARED_GPU_SHARE,
    each_server,
    given,
    parallel_args,
    rank_bucket,
)
from vf.trainer.learning.memory.trainer_memory import BFLOAT16, CUDA_CONTEXT, FLOAT32, Shape
from vf.trainer.settings.config import Config
from vf.trainer.settings.overlap import steps_ahead

GIB = 2**30
DEFAULT_SHARE = 0.92
LARGE_GPU = 70 * GIB  # from here on, vLLM's batches are larger
BATCH_TOKENS, SEQUENCES = (2048, 8192), (256, 1024)  # of a small and a large GPU
GRAPHS = 1 * GIB  # CUDA graphs, as a rule of thumb
SORTED = 24  # bytes of a logit while the largest are looked for: copies, order, sums
CACHE_ON_CPU = "VLLM_CPU_KVCACHE_SPACE"


def shares_gpu(config: Config) -> bool:
    """Return whether a server that the run starts has a GPU that the trainer has, too."""
    settings = config.inference.started
    if settings is None or config.cluster.backend == "ray":
        return False
    return settings.gpus is None or bool({*settings.gpus} & {*(config.trainer.devices or [0])})


def server_share(config: Config) -> float:
    """Return the share of a GPU's memory that the run's server takes."""
    share = given(_started(config)).get("gpu_memory_utilization")
    if isinstance(share, int | float):
        return float(share)
    return SHARED_GPU_SHARE if shares_gpu(config) else DEFAULT_SHARE


def predict_server(shape: Shape, config: Config, total: int, *, cuda: bool) -> dict[str, int]:
    """Return the bytes that the run's server takes of each of its GPUs, by purpose.

    With n GPUs for one copy of the model (``tensor_parallel_size`` times
    ``pipeline_parallel_size``):

    - ``weights``: 2·parameters/n, or 4·parameters/n on a CPU or with ``dtype = "float32"``.
    - ``adapters``: room for max_loras adapters on all matrices of the layers, 2 bytes a number.
    - ``batch``: of max_num_batched_tokens tokens, a layer's 2·(4·H + 3·I) bytes, and 24 bytes for
      each logit of max_num_seqs rows, which the sampler sorts.
    - ``CUDA and graphs``: 0.6 GiB, and 1 GiB without ``enforce_eager``.
    - ``key-value cache``: what is left of gpu_memory_utilization; it can be negative. On a CPU,
      what VLLM_CPU_KVCACHE_SPACE says.

    Args:
        shape: The shape of the model.
        config: With a server that the run starts.
        total: Bytes of one GPU.
        cuda: Whether it runs on GPUs.
    """
    args, server = config.args, _started(config)
    flags, gpus = given(server), copy_gpus(server)
    exact = not cuda or str(flags.get("dtype")) in ("float32", "float")
    sizes = {"weights": (FLOAT32 if exact else BFLOAT16) * shape.parameters // gpus}
    if args.use_lora:
        h, i, a, k = shape.hidden, shape.intermediate, shape.queries, shape.keys
        ends = (h + a) + 2 * (h + k) + (a + h) + 2 * (h + i) + (i + h)
        slots = _number(flags, "max_loras", steps_ahead(config) + 1)
        numbers = slots * rank_bucket(args.lora_rank) * ends * shape.layers
        sizes["adapters"] = BFLOAT16 * numbers // gpus
    if not cuda:
        space = {**os.environ, **server.env}.get(CACHE_ON_CPU, "2")
        return sizes | {"key-value cache": int(float(space) * GIB)}
    large = total >= LARGE_GPU
    tokens = _number(flags, "max_num_batched_tokens", BATCH_TOKENS[large])
    rows = min(tokens, _number(flags, "max_num_seqs", SEQUENCES[large]))
    layer = BFLOAT16 * tokens * (4 * shape.hidden + 3 * shape.intermediate)
    sizes["batch"] = layer + SORTED * rows * shape.vocabulary
    sizes["CUDA and graphs"] = CUDA_CONTEXT + (0 if flags.get("enforce_eager") else GRAPHS)
    share = int(server_share(config) * total)
    return sizes | {"key-value cache": share - sum(sizes.values())}


def server_cache_per_token(shape: Shape, config: Config, *, cuda: bool) -> int:
    """Return the bytes that the server's cache has of a token on each of a copy's GPUs."""
    server = _started(config)
    flags = given(server)
    width = BFLOAT16 if cuda else FLOAT32
    if str(flags.get("kv_cache_dtype", "auto")).startswith("fp8"):
        width = 1
    return 2 * shape.keys * shape.attending * width // copy_gpus(server)


def _started(config: Config) -> VllmSettings:
    assert config.inference.started is not None, "the run starts no server"
    return config.inference.started


def copy_gpus(settings: VllmSettings) -> int:
    """Return how many GPUs one copy of the model is spread over."""
    return math.prod(_number(given(settings), size, 1) for size in INSIDE_A_REPLICA)


def copies(settings: VllmSettings) -> int:
    """Return how many copies of the model serve.

    Raises:
        ConfigError: If the GPUs do not fit the parallel sizes.
    """
    servers = each_server(settings)
    flags = given(settings) | parallel_args(servers[0])
    return len(servers) * _number(flags, "data_parallel_size", 1)


def _number(flags: Mapping[str, Any], name: str, default: int) -> int:
    """Return a flag that counts; only vLLM judges one that is not a number."""
    value = flags.get(name)
    return value if type(value) is int and value > 0 else default
