"""Which fleet places a run's processes, and what the run asks it for."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

from vf.cluster.fleet import Fleet, Resources, Role
from vf.inference.settings import VllmSettings
from vf.inference.vllm.server_args import INSIDE_A_REPLICA, given
from vf.trainer.processes.launch import FLEET, OWN_HOST, rank_count, uses_cpu
from vf.trainer.run.worker_count import cores, worker_count
from vf.trainer.settings.config import Config

if TYPE_CHECKING:
    from vf.cluster.ray_fleet import RayFleet

GIB = 2**30


def open_fleet(config: Config) -> Fleet:
    """Return the fleet with which the run's first process places servers and workers.

    Raises:
        ConfigError: The cluster cannot be reached, or is too small.
        PlacementError: What the run had reserved is gone.
    """
    if config.cluster.backend == "local":
        from vf.cluster.local_fleet import LocalFleet

        return LocalFleet()
    from vf.cluster.ray_fleet import RayFleet, Reservation

    if (text := os.environ.get(FLEET)) is not None:
        return RayFleet.joined(Reservation.from_text(text), os.environ[OWN_HOST])
    fleet = cluster_fleet(config)
    fleet.reserve([each for each in wanted(config, gpus=fleet.gpus) if each[0] != "rank"])
    return fleet


def cluster_fleet(config: Config) -> RayFleet:
    """Return a fleet on the Ray cluster that the settings name.

    Raises:
        ConfigError: It cannot be reached, or Ray is not installed.
    """
    from vf.cluster.ray_fleet import RayFleet

    settings = config.cluster
    return RayFleet(
        settings.address,
        wait=settings.wait,
        runtime_env=settings.runtime_env,
        shared=[Path(config.args.output_dir)],
    )


def wanted(config: Config, *, gpus: int) -> list[tuple[Role, int, Resources]]:
    """Return what a run asks a cluster for: how many processes of each role, and their size.

    Args:
        config: The settings.
        gpus: How many the cluster has. Without any, trainer and servers use CPUs.

    Raises:
        ConfigError: ``trainer.accelerate_config`` cannot be read.
    """
    asked = config.trainer.gpus is not None
    each = int(asked or (gpus > 0 and not uses_cpu(config)))
    found: list[tuple[Role, int, Resources]] = [
        ("rank", rank_count(config), size_of(config, "rank", each))
    ]
    settings = config.inference
    if isinstance(settings, VllmSettings) and settings.base_url is None:
        args = given(settings)
        copy = math.prod(int(args.get(name, 1)) for name in INSIDE_A_REPLICA)
        per_server = copy if gpus else 0
        found.append(("server", 1, size_of(config, "server", per_server)))
    if workers := worker_count(config, cores(), None)[0]:
        found.append(("worker", workers, size_of(config, "worker", 0)))
    return found


def size_of(config: Config, role: Role, gpus: int) -> Resources:
    """Return what one process of a role is given."""
    cluster = config.cluster
    settings = {"rank": cluster.rank, "server": cluster.server, "worker": cluster.worker}[role]
    return Resources(settings.cpus, gpus, int(settings.memory * GIB))
