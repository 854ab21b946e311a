"""Which fleet places a run's processes, and what the run requests from it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from vf.cluster.fleet import Fleet, Resources, Role
from vf.inference.settings import VllmSettings
from vf.trainer.processes.gpus import share_of
from vf.trainer.processes.launch import FLEET, OWN_HOST, rank_count, uses_cpu
from vf.trainer.settings.config import Config

if TYPE_CHECKING:
    from vf.cluster.ray_fleet import RayFleet

GIB = 2**30


def open_fleet(config: Config, workers: int) -> Fleet:
    """Return the fleet with which the run's first process places servers and workers.

    Args:
        config: The settings.
        workers: The number of processes that rollouts run in.

    Raises:
        ConfigError: If the cluster cannot be reached, or is too small.
        PlacementError: If what the run had reserved is gone.
    """
    if config.cluster.backend == "local":
        from vf.cluster.local_fleet import LocalFleet

        return LocalFleet()
    from vf.cluster.ray_fleet import RayFleet, Reservation

    if (text := os.environ.get(FLEET)) is not None:
        return RayFleet.joined(Reservation.from_text(text), os.environ[OWN_HOST])
    fleet = cluster_fleet(config)
    try:
        roles = requested_processes(config, workers=workers, gpus=fleet.has_gpus)
        fleet.reserve([role for role in roles if role[0] != "rank"])
    except BaseException:
        fleet.stop()  # which leaves the cluster
        raise
    return fleet


def cluster_fleet(config: Config) -> RayFleet:
    """Return a fleet on the Ray cluster that the settings name.

    Raises:
        ConfigError: If the cluster cannot be reached, or Ray is not installed.
    """
    from vf.cluster.ray_fleet import RayFleet

    settings = config.cluster
    return RayFleet(
        settings.address,
        wait=settings.wait,
        runtime_env=settings.runtime_env,
        shared=[Path(config.args.output_dir)],
    )


def requested_processes(
    config: Config, *, workers: int, gpus: bool
) -> list[tuple[Role, int, Resources]]:
    """Return what a run asks a cluster for: how many processes of each role, and their size.

    Args:
        config: The settings.
        workers: The number of processes that rollouts run in.
        gpus: Whether the cluster has GPUs, or will. Otherwise trainer and servers use CPUs.

    Raises:
        ConfigError: If ``trainer.accelerate_config`` cannot be read.
    """
    cpu = config.trainer.gpus is None and (not gpus or uses_cpu(config))
    requests: list[tuple[Role, int, Resources]] = [
        ("rank", rank_count(config), size_of(config, "rank", int(not cpu)))
    ]
    if (settings := config.inference.started) is not None:
        size = size_of(config, "server", gpus_of_server(settings, cpu=cpu))
        requests.append(("server", settings.replicas, size))
    if workers:
        requests.append(("worker", workers, size_of(config, "worker", 0)))
    return requests


def gpus_of_server(settings: VllmSettings, *, cpu: bool) -> int:
    """Return how many GPUs a cluster gives to each inference server.

    Args:
        settings: ``[inference]``.
        cpu: Whether the model is trained on CPUs. It is then served from them, unless
            ``gpus_per_replica`` says otherwise.

    Raises:
        ConfigError: If a size in ``inference.args`` is not a whole number from 1, or
            ``gpus_per_replica`` does not fit them.
    """
    share = share_of(settings)
    if settings.gpus_per_replica is None and cpu:
        return 0
    return share.exact // settings.replicas or share.copy


def size_of(config: Config, role: Role, gpus: int) -> Resources:
    """Return what one process of a role is given, with so many GPUs."""
    cluster = config.cluster
    settings = {"rank": cluster.rank, "server": cluster.server, "worker": cluster.worker}[role]
    return Resources(settings.cpus, gpus, int(settings.memory * GIB))
