"""Starting the trainer's processes: how many there are, and `accelerate launch`.

Importing this module loads no torch.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vf.runtime.command import FAILED, PEER_LOST
from vf.runtime.errors import ConfigError

if TYPE_CHECKING:
    from vf.trainer.settings.config import Config

# Holds CUDA_VISIBLE_DEVICES as it was before `[trainer] gpus` narrowed it.
OUTER_DEVICES = "VF_OUTER_CUDA_VISIBLE_DEVICES"

SHARING = ("FSDP", "DEEPSPEED")  # Accelerate's names of how processes share the weights
DEEPSPEED = (0, 19, 4)  # steps without a fixed number of micro-batches since then

# Holds, in a process that was placed on a cluster, what its run has reserved there.
FLEET = "VF_FLEET"
# And this, the address of its machine.
OWN_HOST = "VF_HOST"

# Holds the process id of a launcher that `vf-rl` is itself.
LAUNCHER = "VF_LAUNCHER"

# And this, the numbers of GPUs as the settings have them, before those left open were filled in.
GIVEN_GPUS = "VF_GIVEN_GPUS"

# What a launcher tells its workers. To a child of a worker it would be a lie.
LAUNCHER_VARIABLES = (
    LAUNCHER,
    GIVEN_GPUS,
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
)


class World(NamedTuple):
    """Which of a launcher's processes this one is.

    Attributes:
        rank: The rank's number; 0 leads.
        size: How many there are; 1 without a launcher.
    """

    rank: int
    size: int


def world() -> World:
    """Return this process's place, from the environment variables that every launcher sets."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    return World(int(os.environ.get("RANK", "0")), size) if size > 1 else World(0, 1)


def launcher() -> int | None:
    """Return the process id of the launcher, whose child this process is; None if not known."""
    name = os.environ.get(LAUNCHER)
    return int(name) if name else None


def is_fsdp() -> bool:
    """Return whether the launcher asked for the model to be spread over the processes by FSDP."""
    return world().size > 1 and os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true"


def zero_stage() -> int | None:
    """Return which stage of DeepSpeed's ZeRO the launcher asked for, or None for no DeepSpeed.

    Raises:
        ConfigError: If DeepSpeed's own file cannot be read.
    """
    uses_deepspeed = os.environ.get("ACCELERATE_USE_DEEPSPEED", "").lower() == "true"
    if world().size == 1 or not uses_deepspeed:
        return None
    file = os.environ.get("ACCELERATE_DEEPSPEED_CONFIG_FILE", "none")
    if file == "none":
        return int(os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", "2"))
    try:
        return int(json.loads(Path(file).read_text())["zero_optimization"]["stage"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"deepspeed_config_file = {file!r} names no zero_optimization.stage: {error}"
        ) from error


def precision() -> str:
    """Return the ``mixed_precision`` of the launcher's settings: ``no`` where they do not say."""
    return os.environ.get("ACCELERATE_MIXED_PRECISION", "no")


def _zero_offloads() -> bool:
    """Return whether DeepSpeed's settings, which can be read, keep moments in the host's memory."""
    file = os.environ.get("ACCELERATE_DEEPSPEED_CONFIG_FILE", "none")
    if file == "none":
        return os.environ.get("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE") == "cpu"
    settings = json.loads(Path(file).read_text())["zero_optimization"]
    return bool(settings.get("offload_optimizer", {}).get("device") == "cpu")


def is_sharded() -> bool:
    """Return whether each process holds a part of the parameters only (FSDP, or ZeRO's stage 3)."""
    return is_fsdp() or zero_stage() == 3


class Sharing(NamedTuple):
    """How the trainer's processes share what they train.

    Attributes:
        processes: How many there are.
        stage: ZeRO's: 1 shares the optimizer's state, 2 gradients too, 3 weights too, as FSDP does;
            0 shares nothing.
        moments_on_host: Whether the host's memory holds the optimizer's state.
        weights_on_host: Whether it holds weights and gradients, too.
    """

    processes: int = 1
    stage: int = 0
    moments_on_host: bool = False
    weights_on_host: bool = False

    def over(self, stage: int) -> int:
        """Return over how many processes is spread what is shared from a stage on."""
        return self.processes if self.stage >= stage else 1


def sharing(config: Config) -> Sharing:
    """Return how a run's processes share the model, also before they are started.

    Raises:
        ConfigError: If ``trainer.accelerate_config`` cannot be read, or asks for what is not there.
    """
    if world().size > 1:
        every = is_fsdp() and os.environ.get("FSDP_OFFLOAD_PARAMS", "").lower() == "true"
        zero = zero_stage()
        moments = every or (zero is not None and _zero_offloads())
        return Sharing(world().size, 3 if is_fsdp() else zero or 0, moments, every)
    count = max(1, len(config.trainer.devices or []))
    if config.trainer.accelerate_config is None:
        return Sharing(count)
    accelerate = _read_accelerate_config(config.trainer.accelerate_config)
    if config.trainer.devices is None:
        count = max(1, int(accelerate.num_processes))
    settings = {**accelerate.fsdp_config, **accelerate.deepspeed_config}
    stage = 3 if accelerate.distributed_type == "FSDP" else int(settings.get("zero_stage", 0))
    every = settings.get("fsdp_offload_params") is True
    moments = every or settings.get("offload_optimizer_device") == "cpu"
    return Sharing(count, stage, moments, every) if count > 1 else Sharing()


def check_deepspeed() -> None:
    """See that DeepSpeed is there.

    Raises:
        ConfigError: If DeepSpeed is missing or too old.
    """
    try:
        installed = version("deepspeed")
    except PackageNotFoundError:
        installed = ""
    if tuple(int(part) for part in re.findall(r"\d+", installed)[:3]) < DEEPSPEED:
        needed = ".".join(map(str, DEEPSPEED))
        raise ConfigError(
            f"the Accelerate config asks for DeepSpeed, which is {installed or 'not installed'}: "
            f"{needed} or newer is needed, `pip install 'vf-rl[deepspeed]'`"
        )


def processes_to_launch(config: Config) -> int:
    """Return how many processes are still to be started: 0 where this one is all, or one of all.

    Raises:
        ConfigError: If ``trainer.accelerate_config`` cannot be read, or asks for what is not there.
    """
    if world().size > 1 or FLEET in os.environ:
        return 0
    count = rank_count(config)
    return count if count > 1 or is_elsewhere(config) else 0


def rank_count(config: Config) -> int:
    """Return how many processes the settings ask for to train.

    Raises:
        ConfigError: If ``trainer.accelerate_config`` cannot be read, or asks for what is not there.
    """
    count = len(config.trainer.devices or [])
    if config.trainer.accelerate_config is not None:
        count = count or _configured_processes(config.trainer.accelerate_config)
    return max(1, count)


def uses_cpu(config: Config) -> bool:
    """Return whether an Accelerate config, or ``ACCELERATE_USE_CPU``, asks for training on CPUs.

    Raises:
        ConfigError: If the Accelerate config cannot be read.
    """
    path = config.trainer.accelerate_config
    if os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true"):
        return True
    return path is not None and bool(_read_accelerate_config(path).use_cpu)


def is_elsewhere(config: Config) -> bool:
    """Return whether the trainer's processes will run on a cluster, and this is none of them."""
    return config.cluster.backend == "ray" and FLEET not in os.environ


def _configured_processes(path: str) -> int:
    """Return how many processes an Accelerate config asks for."""
    config = _read_accelerate_config(path)
    if config.distributed_type == "DEEPSPEED":
        check_deepspeed()
    return int(config.num_processes)


def _read_accelerate_config(path: str) -> Any:
    """Return an Accelerate config for this machine.

    Raises:
        ConfigError: If it cannot be read, or is for several machines.
    """
    from accelerate.commands.config.config_args import load_config_from_file

    try:
        config = load_config_from_file(_path(path))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"trainer.accelerate_config = {path!r}: {error}") from error
    if config.num_machines and config.num_machines > 1:
        raise ConfigError(
            f"trainer.accelerate_config = {path!r} is for {config.num_machines} machines: start "
            "`accelerate launch --config_file ... -m vf.trainer.commands.main CONFIG.toml` on each"
        )
    return config


class Meeting(NamedTuple):
    """Which of several machines this one is to the trainer's processes, one on each.

    Attributes:
        rank: The rank's number.
        host: Address of the first, as the others reach it.
        port: Of the first, where they meet.
    """

    rank: int
    host: str
    port: int


def launcher_args(
    count: int, argv: Sequence[str], config_file: str | None = None, meeting: Meeting | None = None
) -> list[str]:
    """Return the arguments of ``accelerate launch`` that start a run in several processes.

    They leave nothing to the user's Accelerate defaults, whose precision, sharding or port are
    those of other work. Without CUDA the processes train on the CPU, over gloo.

    Args:
        count: The number of processes.
        argv: The arguments of ``vf-rl``.
        config_file: An Accelerate config that says the rest.
        meeting: The rendezvous of processes on separate machines; by default all are on this one.
    """
    how = ["--multi_gpu", "--mixed_precision", "no", "--dynamo_backend", "no"]
    if config_file is not None:
        # Unless told so, Accelerate starts one process where the config is for CPUs.
        shares = _read_accelerate_config(config_file).distributed_type in SHARING
        how = [*([] if shares else ["--multi_gpu"]), "--config_file", _path(config_file)]
    here, machines = count, ["--num_machines", "1", "--machine_rank", "0"]
    machines += ["--main_process_port", "0"]
    if meeting is not None:
        here, machines = 1, ["--num_machines", str(count), "--machine_rank", str(meeting.rank)]
        machines += ["--main_process_ip", meeting.host, "--main_process_port", str(meeting.port)]
        machines += ["--same_network", "--deepspeed_multinode_launcher", "standard"]
    threads = max(1, len(os.sched_getaffinity(0)) // here) if sys.platform == "linux" else 1
    return [
        *(*how, "--num_processes", str(count), *machines, "--gpu_ids", "all"),
        *("--num_cpu_threads_per_process", os.environ.get("OMP_NUM_THREADS", str(threads))),
        *("-m", "vf.trainer.commands.main", *argv),
    ]


def _path(config_file: str) -> str:
    return str(Path(config_file).expanduser())


def launch(
    count: int, argv: Sequence[str], config_file: str | None = None, meeting: Meeting | None = None
) -> int:
    """Run ``vf-rl`` in several processes, wait for their end and return the run's exit code.

    If one process dies, the others are ended: with SIGTERM, and after 30 s with SIGKILL.

    Args:
        count: The number of processes.
        argv: The arguments of ``vf-rl``.
        config_file: An Accelerate config.
        meeting: The rendezvous of processes on separate machines; one of them is then started here.

    Returns:
        The exit code; 128 + n where a signal ended a process that has a machine of its own.
    """
    from accelerate.commands.launch import launch_command, launch_command_parser
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    if sys.platform == "linux" and meeting is None:
        # All processes are on this machine, so their commands need not be heard outside of it.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if config_file is not None and _read_accelerate_config(config_file).use_cpu:
        os.environ["ACCELERATE_USE_CPU"] = "true"  # which Accelerate says to one process alone
    os.environ[LAUNCHER] = str(os.getpid())
    # What failed has said so itself.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    arguments = launcher_args(count, argv, config_file, meeting)
    try:
        launch_command(launch_command_parser().parse_args(arguments))
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode == PEER_LOST and meeting is None:
            return FAILED
        if failure.exitcode >= 0:
            return int(failure.exitcode)
        if meeting is not None:
            return 128 - int(failure.exitcode)
        name = signal.Signals(-failure.exitcode).name
        print(f"vf-rl: trainer process {rank} of {count} was killed by {name}", file=sys.stderr)
        return 1
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0


def outer_environ() -> dict[str, str]:
    """Return the environment variables without what concerns this process alone.

    Children that are no rank, such as an inference server, see all devices and no launcher.
    """
    environ = dict(os.environ)
    if world().size > 1:
        for name in os.environ:
            if name in LAUNCHER_VARIABLES or name.startswith("TORCHELASTIC_"):
                del environ[name]
    outer = environ.pop(OUTER_DEVICES, None)
    if outer is not None:
        del environ["CUDA_VISIBLE_DEVICES"]
        if outer:
            environ["CUDA_VISIBLE_DEVICES"] = outer
    return environ


def leave_world() -> None:
    """Make :func:`outer_environ` the environment, once this process has joined the other ranks."""
    outer = outer_environ()
    for name in set(os.environ) - outer.keys():
        del os.environ[name]
    os.environ.update(outer)
