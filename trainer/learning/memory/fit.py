"""Whether a run fits in memory, and the values of "auto" settings."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vf.runtime.errors import ConfigError
from vf.trainer.learning.memory.server_memory import (
    CACHE_ON_CPU,
    copies,
    predict_server,
    server_cache_per_token,
    shares_gpu,
)
from vf.trainer.learning.memory.trainer_memory import (
    CUDA_CONTEXT,
    FLOAT32,
    SHARE,
    Shape,
    Surroundings,
    computed_width,
    largest_budget,
    predict,
    trained_parameters,
)
from vf.trainer.processes.launch import precision, sharing, world
from vf.trainer.run.plan import Memory, size_text
from vf.trainer.settings.config import Config

NAMED = 3  # items that an error names: the largest of those that a setting shrinks
MINOR = 0.04  # of what is needed: a smaller item is not named
LASTING = (
    *("weights", "optimizer", "reference", "reference adapter", "teacher"),
    "CUDA and fragments",
)


@dataclass(frozen=True, slots=True)
class Device:
    """What a trainer process trains on.

    Attributes:
        name: In words.
        total: The device's memory, in bytes.
        free: Bytes that nothing else uses.
        cuda: Whether it is a CUDA device.
        bf16: Whether it has bfloat16.
    """

    name: str
    total: int
    free: int
    cuda: bool
    bf16: bool

    @classmethod
    def here(cls) -> Device:
        """Return this process's device; of a CPU's memory, its share."""
        import torch

        if torch.cuda.is_available():
            free, total = torch.cuda.mem_get_info()
            # This process's own context is there by now, and is predicted, too.
            free = min(total, free + CUDA_CONTEXT)
            name = torch.cuda.get_device_name()
            bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
            return cls(name, total, free, True, bf16)
        import psutil

        memory, processes = psutil.virtual_memory(), world().size
        return cls(
            "this machine", memory.total // processes, memory.available // processes, False, False
        )

    @classmethod
    def of(cls, gigabytes: float) -> Device:
        """Return a GPU of so many times 10⁹ bytes: at most what a card of that name has."""
        size = int(gigabytes * 10**9)
        return cls(f"a GPU of {gigabytes:g} GB", size, size, True, True)


UNKNOWN = Device("unknown", 0, 0, False, False)  # of a process that only launches others


def settle(config: Config, shape: Shape, device: Device) -> tuple[Config, str]:
    """Return the config with what "auto" means here, and how a budget was found, if it was."""
    budget = ""
    if config.args.bf16 == "auto":
        config = config.with_args(bf16=device.bf16 or precision() == "bf16")
    room = int(SHARE * (device.free - _beside(config, shape, device)))
    if config.args.gradient_checkpointing == "auto":
        tight = sum(_trainer(config, shape, device).values()) > room
        config = config.with_args(gradient_checkpointing=tight)
    if config.args.micro_batch_tokens == "auto":
        tokens = largest_budget(shape, config.args, room, _surroundings(config, device))
        config = config.with_args(micro_batch_tokens=tokens)
        free = size_text(int(room / SHARE))
        budget = f"{tokens:,} tokens, found for {SHARE:.0%} of the {free} that are free"
    return config, budget


def plan_memory(config: Config, shape: Shape, device: Device) -> Memory:
    """Predict what trainer and server need; "auto" counts as off."""
    trainer = _trainer(config, shape, device)
    settings, server, contexts, awake = config.inference.started, {}, 0.0, None
    if settings is not None:
        server = predict_server(shape, config, device.total, cuda=device.cuda)
        per_token = server_cache_per_token(shape, config, cuda=device.cuda)
        one = server["key-value cache"] / (per_token * config.args.max_seq_len)
        contexts = one * copies(settings)
        if settings.sleep:
            awake = sum(trainer.get(name, 0) for name in LASTING)
    shared = bool(server) and (not device.cuda or shares_gpu(config))
    return Memory(
        trainer,
        server,
        contexts,
        shared,
        awake,
        device.name,
        device.cuda,
        device.total,
        device.free,
    )


def check_fit(memory: Memory, config: Config) -> None:
    """See that a run fits.

    Raises:
        ConfigError: If its server has no room for one context, or trainer and server need more than
            there is. Names the largest items, and the settings that shrink them.
    """
    if not memory.total:
        return
    if memory.server and memory.contexts < 1:
        raise ConfigError(_no_context(memory, config))
    trainer, server = sum(memory.trainer.values()), sum(memory.server.values())
    if not memory.shared:
        need = trainer
    elif memory.awake is None:
        need = trainer + server
    else:  # they take turns
        need = max(trainer, memory.awake + server)
    if need > memory.free:
        raise ConfigError(_too_much(memory, config, need))


def disk_needed(config: Config, shape: Shape) -> int:
    """Return the bytes of the checkpoints that a run keeps at most, and of one being written.

    Each has what is trained and Adam's moments in float32, and the model or adapter again as it is
    served.
    """
    args = config.args
    kept = min(math.ceil(args.max_steps / args.save_steps), args.save_total_limit)
    kept += 2 + (args.save_minutes > 0)  # the best, one being written, and one by the clock
    return kept * (3 * FLOAT32 + computed_width(args)) * trained_parameters(shape, args)


def _no_context(memory: Memory, config: Config) -> str:
    cache = memory.server["key-value cache"]
    rest = {name: size for name, size in memory.server.items() if name != "key-value cache"}
    parts = ", ".join(f"{name} {size_text(size)}" for name, size in rest.items())
    if not memory.cuda:
        return (
            f"the server's key-value cache of {size_text(cache)} holds no context of "
            f"trainer.args.max_seq_len = {config.args.max_seq_len} tokens: raise "
            f"{CACHE_ON_CPU} in inference.env (GiB), or lower trainer.args.max_seq_len"
        )
    return (
        f"the server would have {size_text(sum(memory.server.values()))} of {memory.device}; "
        f"{parts} leave {size_text(max(0, cache))} for its key-value cache, which is not one "
        f"context of trainer.args.max_seq_len = {config.args.max_seq_len} tokens. Raise "
        "inference.args.gpu_memory_utilization, lower trainer.args.max_seq_len or "
        "inference.args.max_num_seqs, or spread the model over more GPUs (inference.gpus and "
        "inference.args.tensor_parallel_size)"
    )


def _too_much(memory: Memory, config: Config, need: int) -> str:
    items = dict(memory.trainer)
    if memory.shared:
        items["the vLLM server"] = sum(memory.server.values())
    over = need - memory.free
    fixes = {name: _fix(name, size, config, over, memory.cuda) for name, size in items.items()}
    helps = [name for name in items if fixes[name] and items[name] > MINOR * need]
    largest = sorted(helps, key=lambda name: -items[name])[:NAMED]
    parts = "; ".join(f"{name} {size_text(items[name])} ({fixes[name]})" for name in largest)
    has = f"{size_text(memory.free)} free of {size_text(memory.total)}"
    return (
        f"this run needs about {size_text(need)} at its peak, but {memory.device} has {has}. What "
        f"takes most: {parts}"
    )


def _fix(item: str, size: int, config: Config, over: int, cuda: bool) -> str:
    """Return how an item of memory is made smaller; empty where nothing does.

    Args:
        item: The purpose of the memory.
        size: The item's size, in bytes.
        config: The settings.
        over: Bytes that are missing.
        cuda: Whether it is on a CUDA device.
    """
    args, settings = config.args, config.inference
    fixes = []
    if item == "weights":
        if args.use_lora and not args.bf16 and not args.load_in_4bit:
            fixes.append("set trainer.args.bf16 = true")
        if args.use_lora and settings.in_process and not args.load_in_4bit:
            fixes.append("set trainer.args.load_in_4bit = true")
        if not args.use_lora:
            fixes.append("train an adapter with trainer.args.use_lora = true")
            fixes.append("share them with trainer.accelerate_config")
    elif item == "gradients":
        fixes.append("train an adapter with trainer.args.use_lora = true")
    elif item in ("optimizer", "optimizer step") and config.trainer.accelerate_config is None:
        fixes.append('set trainer.args.optim = "adamw_8bit" or "adamw_offload"')
    elif item == "key-value cache" and settings.in_process:
        requests = settings.in_process_requests
        fit = int(requests - over / (size / requests))
        fixes.append(
            f"lower inference.args.max_requests to {fit}"
            if fit >= 1
            else "lower inference.args.max_requests and trainer.args.max_seq_len"
        )
    elif item in ("activations", "head and scratch"):
        if args.gradient_checkpointing is not True and item == "activations":
            fixes.append("set trainer.args.gradient_checkpointing = true")
        fixes.append("lower trainer.args.micro_batch_tokens")
    elif item == "the vLLM server" and not cuda:
        fixes.append('set inference.engine = "embedded", which has the weights in memory once')
    elif item == "the vLLM server":
        fixes.append("lower inference.args.gpu_memory_utilization")
        fixes.append("give it GPUs of its own with inference.gpus and trainer.gpus")
    return ", or ".join(fixes)


def _trainer(config: Config, shape: Shape, device: Device) -> dict[str, int]:
    args = config.args
    budget = args.max_seq_len if args.micro_batch_tokens == "auto" else args.micro_batch_tokens
    tokens = min(budget, args.batch_size * args.max_seq_len)
    return predict(shape, args, tokens, _surroundings(config, device))


def _surroundings(config: Config, device: Device) -> Surroundings:
    return Surroundings(config.inference.in_process_requests, sharing(config), device.cuda)


def _beside(config: Config, shape: Shape, device: Device) -> int:
    """Return the bytes that a server takes of the trainer's device while the trainer works."""
    settings = config.inference.started
    if settings is None or settings.sleep:
        return 0
    if device.cuda and not shares_gpu(config):
        return 0
    one = sum(predict_server(shape, config, device.total, cuda=device.cuda).values())
    return one if device.cuda else one * settings.replicas
