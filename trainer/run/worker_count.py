"""The number of processes that run rollouts."""

from __future__ import annotations

import math
import os
import sys

from vf.environments.registry import registrar
from vf.runtime.errors import ConfigError
from vf.trainer.settings.config import Config

CORES = 8  # of the machine, for each worker
ROLLOUTS = 32  # at once, for each worker
MOST = 8  # workers, unless the settings say more


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def worker_count(config: Config, cores: int, containers: int | None) -> tuple[int, str]:
    """Return how many worker processes rollouts run in, and why.

    Args:
        config: The settings; the environment has been made.
        cores: The cores that this process may use, which say nothing about a cluster's workers.
        containers: The most containers of all workers, of which each needs one; None for no bound.

    Raises:
        ConfigError: If workers are requested that cannot make the environment, or outnumber their
            containers.
    """
    requested = config.rollouts.workers
    if requested == 0:
        return 0, "in the trainer's process, as rollouts.workers = 0 says"
    for id in [env.id for env in config.env if registrar(env.id) == "__main__"]:
        if requested == "auto":
            return 0, f"in the trainer's process: its program registers {id!r} itself"
        raise ConfigError(
            f"rollouts.workers = {requested}, but environment {id!r} is registered by the "
            "program that was started, which worker processes do not run: put it into a file of "
            "its own and set env.id to that file, or set rollouts.workers = 0"
        )
    if requested != "auto":
        if containers is not None and requested > containers:
            raise ConfigError(
                f"rollouts.workers = {requested}, but sandbox.max_containers = {containers} of "
                f"environment {' or '.join(map(repr, config.names))}: each worker needs a "
                "container. Lower workers, or raise max_containers"
            )
        return requested, "as rollouts.workers says"
    if config.inference.in_process:
        return 0, "in the trainer's process, which samples, too"
    count = min(MOST, math.ceil(config.args.max_concurrent / ROLLOUTS))
    reason = f"one for every {ROLLOUTS} rollouts at once, {MOST} at most"
    if config.cluster.backend == "local" and cores // CORES < count:
        count, reason = cores // CORES, f"one for every {CORES} of {cores} cores, {MOST} at most"
    if not count:
        return 0, f"in the trainer's process: {cores} cores are too few for another"
    if containers is not None and containers < count:
        return containers, f"one for each of sandbox.max_containers = {containers}"
    return count, reason
