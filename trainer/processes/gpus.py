"""Which GPUs of this machine train, and which serve, where the settings leave it open.

Importing this module loads no torch: which devices a process sees is settled before that.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any, NamedTuple

from vf.inference.settings import VllmSettings
from vf.inference.vllm.server_args import INSIDE_A_REPLICA, given, parallel_args, whole_number
from vf.runtime.errors import ConfigError
from vf.trainer.processes.launch import GIVEN_GPUS, OUTER_DEVICES, sharing, world
from vf.trainer.settings.config import Config

PATIENCE = 10.0  # seconds for nvidia-smi


class Split(NamedTuple):
    """Who has which GPUs.

    Attributes:
        config: With ``trainer.gpus`` and ``inference.gpus`` filled in where that is possible.
        why: In one line, what is used by whom and because of what; empty if there is no choice.
    """

    config: Config
    why: str


def overrides(given: Config, filled: Config) -> list[str]:
    """Return the settings, as ``KEY=VALUE``, that make one config of the other, as to GPUs."""
    return [
        f"{table}.gpus={now}"
        for table in ("trainer", "inference")
        if (now := getattr(getattr(filled, table), "gpus", None))
        != getattr(getattr(given, table), "gpus", None)
    ]


def as_given(config: Config, given: Config) -> Config:
    """Return the settings as they are to be written down: what was filled in is left open again.

    So a run that is resumed elsewhere uses the GPUs that are there.

    Args:
        config: With ``trainer.gpus`` and ``inference.gpus`` filled in; in processes of a launcher
            it was that which filled them in, and noted what was given by :func:`note_given`.
        given: Before that, in a process without a launcher.
    """
    noted = os.environ.get(GIVEN_GPUS) if world().size > 1 else None
    gpus = _gpus(given) if noted is None else json.loads(noted)
    return config.model_copy(
        update={
            table: getattr(config, table).model_copy(update={"gpus": value})
            for table, value in gpus.items()
        }
    )


def note_given(given: Config) -> None:
    """Let processes that this one launches know which GPUs the settings name."""
    os.environ[GIVEN_GPUS] = json.dumps(_gpus(given))


def _gpus(config: Config) -> dict[str, Any]:
    tables = {"trainer": config.trainer, "inference": config.inference}
    return {name: table.gpus for name, table in tables.items() if hasattr(table, "gpus")}


def count_gpus() -> int:
    """Return how many GPUs this process and its servers may use, before the trainer's are chosen.

    They are those that ``CUDA_VISIBLE_DEVICES`` names, or all that NVIDIA's driver lists.
    """
    narrowed = OUTER_DEVICES in os.environ
    visible = (
        os.environ[OUTER_DEVICES] or None if narrowed else os.environ.get("CUDA_VISIBLE_DEVICES")
    )
    if visible is not None:  # if empty, it hides all of them
        return len([name for name in visible.split(",") if name.strip()])
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0
    try:
        done = subprocess.run(
            [program, "--list-gpus"], capture_output=True, text=True, timeout=PATIENCE, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith("GPU ") for line in done.stdout.splitlines())


def split_gpus(config: Config, total: int) -> Split:
    """Give the GPUs that the settings leave open to the trainer and to the servers of a run.

    What one side does not name, the other uses, so one line decides about a machine:
    ``trainer.gpus = 6`` leaves two of eight to the servers. With neither, the servers get half of
    them, rounded up to whole copies of the model. The trainer has the first, the servers the last.
    Where there is one GPU, or servers that sleep while the model is trained, they share: several
    servers divide all of them. On a cluster Ray chooses the devices.

    Args:
        config: The settings.
        total: The number of GPUs.

    Raises:
        ConfigError: If the servers ask for more than are left to them, or a GPU is named that is
            not there.
    """
    settings = config.inference.started
    if not total or world().size > 1 or config.cluster.backend == "ray":
        return Split(config, "")
    _check_numbers(config, total)
    if settings is not None and settings.sleep:
        return _taking_turns(config, settings, total)
    if total < 2:
        return Split(config, "")
    if settings is None or settings.gpus == []:
        return Split(config, _idle(config, total))
    trainer, server, share = config.trainer.devices, settings.gpus, share_of(settings)
    if server is None:
        left = [*range(total)] if trainer is None else _others(trainer, total)
        most = min(len(left), total - 1)  # one is left to train
        count, why = _serving(config, share, total)
        count = share.exact or min(count, most) // share.unit * share.unit
        if count > most or (settings.replicas > 1 and not count):
            raise ConfigError(
                f"{share.demand} {count or share.unit} GPUs for the servers, and {most} of {total} "
                "are left to them by the trainer, which has at least one; ask for fewer, or name "
                "them with inference.gpus, which may be the trainer's, too"
            )
        server = left[len(left) - count :]
    else:
        why = "the trainer has what inference.gpus leaves"
        why = why if trainer is None else "as trainer.gpus and inference.gpus say"
    if trainer is None:
        trainer = _others(server, total)
        if (training := sharing(config).processes) > 1:
            trainer = trainer[:training]
    if not trainer or not server:
        return Split(config, f"of {total}, none are left for a server alone: it has the trainer's")
    filled = config.model_copy(
        update={
            "trainer": config.trainer.model_copy(update={"gpus": trainer}),
            "inference": settings.model_copy(update={"gpus": server}),
        }
    )
    return Split(filled, f"{_describe(trainer, server, share.copy, total)}: {why}")


def least_gpus(config: Config) -> int:
    """Return how many GPUs a machine has at least on which the settings make sense."""
    named = _named_devices(config)
    least = max((device for devices in named.values() for device in devices or ()), default=-1) + 1
    served = config.inference.started is not None
    return max(1, least + (served and bool(named["trainer"]) and named["inference"] is None))


def _named_devices(config: Config) -> dict[str, list[int] | None]:
    """Return the GPUs that the settings name, by table."""
    return {"trainer": config.trainer.devices, "inference": getattr(config.inference, "gpus", [])}


def _check_numbers(config: Config, total: int) -> None:
    """Refuse numbers of GPUs that are not there."""
    for table, devices in _named_devices(config).items():
        if devices and max(devices) >= total:
            raise ConfigError(
                f"{table}.gpus = {getattr(getattr(config, table), 'gpus', None)} names device "
                f"{max(devices)}, but there are {total}, numbered from 0"
            )


def _taking_turns(config: Config, settings: VllmSettings, total: int) -> Split:
    """Divide all GPUs between several servers that sleep while the model is trained."""
    several = settings.replicas > 1 or settings.gpus_per_replica is not None
    if settings.gpus is not None or not several:
        return Split(config, "")
    share = share_of(settings)
    count = share.exact or total // share.unit * share.unit
    if not 0 < count <= total:
        raise ConfigError(
            f"{share.demand} {count or share.unit} GPUs for the servers, and there are {total}; "
            "ask for fewer"
        )
    server = [*range(count)]
    serving = settings.model_copy(update={"gpus": server})
    return Split(
        config.model_copy(update={"inference": serving}),
        f"of {total}, {_named(server)} serve in {settings.replicas} servers, which sleep while the "
        "model is trained",
    )


class Share(NamedTuple):
    """What the servers' part of the GPUs must be.

    Attributes:
        copy: GPUs of one copy of the model.
        unit: What the number has to be a multiple of: a copy for each server.
        exact: The number, if the settings say it; else 0.
        demand: The settings that say so, and a verb.
    """

    copy: int
    unit: int
    exact: int
    demand: str


def share_of(settings: VllmSettings) -> Share:
    """Return what the servers' part of the GPUs must be.

    Raises:
        ConfigError: If a size in ``inference.args`` is not a whole number from 1, or
            ``gpus_per_replica`` does not fit them.
    """
    args, servers = given(settings), settings.replicas
    copy = math.prod(whole_number(args, name) for name in INSIDE_A_REPLICA)
    if settings.gpus_per_replica is not None:
        parallel_args(settings.model_copy(update={"gpus": [*range(settings.gpus_per_replica)]}))
    beside = f" with inference.replicas = {servers}" * (servers > 1)
    if settings.gpus_per_replica is not None:
        wording = f"inference.gpus_per_replica = {settings.gpus_per_replica}{beside} asks for"
        return Share(copy, copy * servers, servers * settings.gpus_per_replica, wording)
    if "data_parallel_size" in args:
        copies = whole_number(args, "data_parallel_size")
        wording = f"inference.args.data_parallel_size = {copies}{beside} asks for"
        return Share(copy, copy * servers, servers * copies * copy, wording)
    return Share(copy, copy * servers, 0, f"inference.replicas = {servers} asks for")


def _serving(config: Config, share: Share, total: int) -> tuple[int, str]:
    """Return how many GPUs are to serve, and why, where inference.gpus does not name them."""
    if share.exact:
        return share.exact, f"{share.demand} as many to serve"
    if config.trainer.devices is not None:
        return total, "the servers have what trainer.gpus leaves"
    if (training := sharing(config).processes) > 1:
        return total - training, "trainer.accelerate_config says how many train"
    half = math.ceil(total / 2 / share.unit) * share.unit
    return half, (
        f"half of them by default; trainer.gpus = {total * 3 // 4} would split them otherwise"
    )


def _describe(trainer: Sequence[int], server: Sequence[int], copy: int, total: int) -> str:
    """Say who has which GPUs."""
    processes, copies = len(trainer), len(server) // copy
    trains = f"{_named(trainer)} train in {processes} process{'es' * (processes != 1)}"
    serves = f"{_named(server)} serve {copies} {'copy' if copies == 1 else 'copies'} of the model"
    idle = total - len({*trainer, *server})
    return f"of {total}, {trains}, {serves}" + (f", {idle} idle" if idle else "")


def _idle(config: Config, total: int) -> str:
    """Say how many GPUs a run that starts no server leaves idle."""
    used = sharing(config).processes
    if used >= total:
        return ""
    text = f"of {total}, {used} train{'s' * (used == 1)}: trainer.gpus says how many"
    if not config.inference.in_process:
        return text
    return f'{text}, and inference.engine = "vllm" lets the others serve'


def _others(devices: Sequence[int], total: int) -> list[int]:
    return [device for device in range(total) if device not in devices]


def _named(devices: Sequence[int]) -> str:
    """Return the numbers of devices, as 0–3 where they follow one another."""
    first, last = devices[0], devices[-1]
    if len(devices) > 1 and [*devices] == [*range(first, last + 1)]:
        return f"{first}–{last}"
    return ", ".join(map(str, devices))
