"""Where a run's own server is: on this machine, or on one that a fleet chooses."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from vf.cluster.fleet import HOST, PORT, Command, Fleet, Resources
from vf.inference.ports import choose_port
from vf.inference.settings import EngineSettings, VllmSettings
from vf.inference.vllm.launch import launcher, server_env
from vf.inference.vllm.server_process import PlacedServer, ServerProcess

log = logging.getLogger(__name__)

LOOPBACK = str(EngineSettings.model_fields["host"].default)
LOOPBACKS = (LOOPBACK, "localhost", "::1")  # of no use to other machines


class Running(Protocol):
    """A server's process."""

    @property
    def returncode(self) -> int | None:
        """The exit code, or None while it runs."""
        ...

    def stop(self) -> None:
        """End it and all that it started. Safe to call twice."""
        ...

    def last_line(self) -> str:
        """Return the last line of its log so far."""
        ...

    def tail(self) -> str:
        """Return the last lines of its log."""
        ...


class Site(Protocol):
    """A place for one server.

    Attributes:
        host: What the server is to listen on, for its flags.
        port: Likewise.
        root: Its URL, as this process and its workers reach it; on a fleet, once it has started.
        trainer: Address of this process, as the server reaches it.
        dying: Seconds within which it is known that a server that is no longer well has ended.
    """

    host: str
    port: str
    root: str
    trainer: str
    dying: float

    def run(self, flags: Sequence[str], log_path: Path, *, lora: bool, cpu: bool) -> Running:
        """Start the server.

        Args:
            flags: Its flags.
            log_path: File that its output is appended to.
            lora: Whether adapters are loaded at run time.
            cpu: Whether there is no GPU.

        Raises:
            ConfigError: If it cannot be started as the settings say.
            PlacementError: If the machine that it was to run on was lost.
        """
        ...


class ThisMachine:
    """A place for a child of this process.

    Args:
        settings: ``[inference]``.

    Raises:
        ConfigError: If vLLM cannot be found, or the port is in use.
    """

    trainer = LOOPBACK
    dying = 15.0

    def __init__(self, settings: VllmSettings) -> None:
        self._settings = settings
        self._command = launcher(settings)
        port = choose_port(settings.host, settings.port)
        self.host, self.port = settings.host, str(port)
        self.root = url(settings.host, port)

    def run(self, flags: Sequence[str], log_path: Path, *, lora: bool, cpu: bool) -> ServerProcess:
        """Start the server; see :class:`Site`."""
        command = [*self._command, *flags]
        log.info("starting %s", " ".join(command))
        env = server_env(self._settings, os.environ, lora=lora, cpu=cpu)
        return ServerProcess(command, env, log_path)


class InFleet:
    """A place on a machine that a fleet chooses, each time it starts.

    Args:
        settings: ``[inference]``.
        fleet: Has a place for it.
    """

    dying = 90.0  # a machine may be lost, too

    def __init__(self, settings: VllmSettings, fleet: Fleet) -> None:
        self._settings = settings
        self._fleet = fleet
        self._command = launcher(settings, here=False)
        self.host = HOST if settings.host in LOOPBACKS else settings.host
        self.port = str(settings.port or PORT)
        self.root = url(HOST, PORT)
        self.trainer = fleet.host

    def run(self, flags: Sequence[str], log_path: Path, *, lora: bool, cpu: bool) -> PlacedServer:
        """Start the server; see :class:`Site`."""
        devices = len(self._settings.gpus or [])
        # Which GPUs it has, the fleet says. Its other variables are added to its machine's.
        settings = self._settings.model_copy(update={"gpus": None})
        env = {"VLLM_API_KEY": "", **server_env(settings, {}, lora=lora, cpu=cpu)}
        command = Command([*self._command, *flags], env, log_path)
        server = PlacedServer(self._fleet, Resources(gpus=devices), command)
        self.root = url(server.host, self._settings.port or server.port)
        log.info("started %s at %s", " ".join(command.argv), self.root)
        return server


def url(host: str, port: int | str) -> str:
    """Return the root of a server's URLs."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
