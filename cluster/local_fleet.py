"""Processes on this machine: children of this process that end with it, however it ends."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import ExitStack

from vf.cluster.fleet import Command, Resources, Role
from vf.cluster.process import Process, open_log
from vf.runtime.errors import ConfigError
from vf.runtime.ports import free_port

HOST = "127.0.0.1"
STOP_SECONDS = 10.0


class LocalHandle:
    """A process on this machine; see :class:`~vf.cluster.fleet.Handle`.

    Args:
        role: Role of the process.
        port: Port that it listens on.
        process: The running process.
        devices: The GPUs that it has to itself.
    """

    def __init__(self, role: Role, port: int, process: Process, devices: Sequence[str]) -> None:
        self.role, self.host, self.port, self.devices = role, HOST, port, devices
        self._process = process

    def poll(self) -> int | None:
        """Return its exit status, negative for a signal; None while it runs. Does not block."""
        return self._process.poll()

    @property
    def lost(self) -> str | None:
        """None: what ends on this machine has an exit status."""
        return None

    def ask(self, patience: float) -> None:
        """Do as :meth:`stop`, without waiting for its end."""
        self._process.ask(patience)

    def stop(self, patience: float = STOP_SECONDS) -> None:
        """End it with all that it started; see :class:`~vf.cluster.fleet.Handle`."""
        self._process.stop(patience)


class LocalFleet:
    """Places processes on this machine; see :class:`~vf.cluster.fleet.Fleet`. For any thread.

    Cores and memory are not divided: the system shares them out. GPUs are: a process sees those
    that it was given and no others, unless its command's ``CUDA_VISIBLE_DEVICES`` says more.

    Args:
        devices: The GPUs to give, as ``CUDA_VISIBLE_DEVICES`` names them.

    Attributes:
        host: The loopback address: nothing listens on others.
    """

    host = HOST

    def __init__(self, devices: Sequence[str] = ()) -> None:
        self._devices = list(devices)
        self._reserved: dict[Role, list[Resources]] = {}
        self._handles: list[LocalHandle] = []
        self._lock = threading.Lock()

    def reserve(self, demand: Sequence[tuple[Role, int, Resources]]) -> None:
        """Set aside what a run needs; a later call replaces what it says about the same roles.

        Raises:
            ConfigError: If there are not that many GPUs.
        """
        with self._lock:
            reserved = self._reserved | {role: [] for role, _, _ in demand}
            for role, count, size in demand:
                reserved[role] = [*reserved[role], *[size] * count]
            gpus = {role: sum(size.gpus for size in sizes) for role, sizes in reserved.items()}
            if sum(gpus.values()) > len(self._devices):
                parts = " and ".join(f"{n} for {role}s" for role, n in gpus.items() if n)
                raise ConfigError(
                    f"the run needs {parts} of {len(self._devices)} GPUs: lower "
                    "inference.replicas or inference.gpus_per_replica, or use a cluster"
                )
            self._reserved = reserved

    def place(self, role: Role, resources: Resources, command: Command) -> LocalHandle:
        """Start one process; see :class:`~vf.cluster.fleet.Fleet`.

        Raises:
            ConfigError: If all of its role's places or the GPUs are taken, there is no such
                program, or the log cannot be written.
        """
        with self._lock, ExitStack() as stack:
            live = [handle for handle in self._handles if handle.poll() is None]
            most = len(self._reserved.get(role, ()))
            if sum(handle.role == role for handle in live) >= most:
                raise ConfigError(f"all {most} places that were reserved for {role}s are taken")
            taken = {device for handle in live for device in handle.devices}
            free = [device for device in self._devices if device not in taken]
            if resources.gpus > len(free):
                raise ConfigError(
                    f"a {role} needs {resources.gpus} GPUs, of which {len(free)} are free"
                )
            devices = free[: resources.gpus]
            port = free_port(HOST)
            command = command.at(HOST, port)
            output = stack.enter_context(open_log(command.log)) if command.log else None
            visible = {"CUDA_VISIBLE_DEVICES": ",".join(devices)}
            process = Process(command, {**os.environ, **visible, **command.env}, output)
            handle = LocalHandle(role, port, process, devices)
            self._handles = [*live, handle]
            return handle

    def stop(self) -> None:
        """End every process that was placed, all at once; nothing is reserved any more."""
        with self._lock:
            self._reserved = {}
            handles, self._handles = self._handles, []
        for handle in handles:
            handle.ask(STOP_SECONDS)
        for handle in handles:
            handle.stop()
