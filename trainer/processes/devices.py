"""The devices that the trainer's processes see.

Importing this module loads no torch: which devices a process sees is settled before that.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from vf.inference.vllm.check_settings import check_divided
from vf.runtime.errors import ConfigError
from vf.trainer.processes.launch import OUTER_DEVICES, is_elsewhere, world

if TYPE_CHECKING:
    from vf.trainer.settings.config import Config


def narrow_devices(config: Config) -> None:
    """Let this process and its children see the devices of ``[trainer] gpus`` only.

    Call it before torch is imported. Under a launcher it has already happened.

    Raises:
        ConfigError: If CUDA_VISIBLE_DEVICES leaves fewer devices than ``gpus`` names.
    """
    devices = config.trainer.devices
    if devices is None or OUTER_DEVICES in os.environ or config.cluster.backend == "ray":
        return
    outer = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = None
    if outer is not None:  # if empty, it hides all devices
        visible = [name.strip() for name in outer.split(",") if name.strip()]
    if visible is not None and max(devices) >= len(visible):
        raise ConfigError(
            f"trainer.gpus = {config.trainer.gpus} names device {max(devices)}, but "
            f"CUDA_VISIBLE_DEVICES = {outer!r} leaves {len(visible)}, numbered from 0"
        )
    os.environ[OUTER_DEVICES] = outer or ""
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(
        visible[device] if visible else str(device) for device in devices
    )


def check_devices(config: Config) -> None:
    """Check that the devices of ``[trainer] gpus`` exist and that this process may use them.

    Raises:
        ConfigError: If devices are missing, or ``gpus`` and the launcher disagree.
    """
    devices, gpus = config.trainer.devices, config.trainer.gpus
    if devices is None or is_elsewhere(config):
        return
    count = _devices_found(f"trainer.gpus = {gpus}", "train on what there is")
    if config.cluster.backend == "ray":
        return  # which gave this process its device
    if OUTER_DEVICES not in os.environ:
        raise ConfigError(
            f"trainer.gpus = {gpus} takes effect only in runs that `vf-rl` starts; leave it out "
            "and set CUDA_VISIBLE_DEVICES"
        )
    if count < len(devices):
        raise ConfigError(f"trainer.gpus = {gpus}: not all of these CUDA devices exist")
    if world().size not in (1, len(devices)):
        raise ConfigError(
            f"trainer.gpus = {gpus} asks for {len(devices)} processes, but the launcher started "
            f"{world().size}; leave one of the two out"
        )


def check_server_devices(config: Config) -> None:
    """Check that the devices of ``[inference] gpus`` exist, or that one server has them all.

    Raises:
        ConfigError: If devices are missing, or several servers would use the same.
    """
    server = config.inference.started
    if server is None or config.cluster.backend == "ray":
        return
    gpus = server.gpus
    if gpus is None:
        import torch

        check_divided(server, cpu=not torch.cuda.device_count())
        return
    count = _devices_found(f"inference.gpus = {gpus}", "serve from the CPU")
    # Where the trainer's own are fewer than the machine's, their number says nothing.
    narrowed = OUTER_DEVICES in os.environ or "CUDA_VISIBLE_DEVICES" in os.environ
    if not narrowed and max(gpus, default=0) >= count:
        raise ConfigError(
            f"inference.gpus = {gpus} names device {max(gpus)}, but there are {count}, numbered "
            "from 0"
        )


def _devices_found(setting: str, otherwise: str) -> int:
    """Return how many CUDA devices torch finds; raise ConfigError if there is none."""
    import torch

    count = torch.cuda.device_count()
    if not count:
        raise ConfigError(
            f"{setting}, but torch finds no CUDA device on this machine; leave it out to "
            f"{otherwise}"
        )
    return count
