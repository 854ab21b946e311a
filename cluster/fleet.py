"""Where a role's process runs: one interface for this machine and for a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

Role = Literal["server", "worker", "rank"]

# In a command's arguments and variables these stand for the address of the machine on which it is
# placed, and for a free port there.
HOST = "{host}"
PORT = "{port}"


@dataclass(frozen=True, slots=True)
class Resources:
    """What one process of a role needs to itself.

    Attributes:
        cpus: Cores; a part of one is allowed.
        gpus: GPUs. Which ones, the fleet says in ``CUDA_VISIBLE_DEVICES``.
        memory: Bytes of main memory; 0 asks for none in particular.
    """

    cpus: float = 1.0
    gpus: int = 0
    memory: int = 0


@dataclass(frozen=True, slots=True)
class Command:
    """What is started.

    Attributes:
        argv: The program and its arguments. A first element ``python`` means the interpreter that
            runs there what runs here. :data:`HOST` and :data:`PORT` are replaced.
        env: Variables beside those of the process that asks; likewise.
        log: File on this machine in which its output is collected.
    """

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    log: Path | None = None

    def at(self, host: str, port: int) -> Command:
        """Return the command with an address and a port in it."""

        def fill(text: str) -> str:
            return text.replace(HOST, host).replace(PORT, str(port))

        variables = {name: fill(value) for name, value in self.env.items()}
        return Command([fill(word) for word in self.argv], variables, self.log)


class Handle(Protocol):
    """A process that was placed.

    Attributes:
        role: What it is.
        host: Address of its machine, as the other machines reach it.
        port: That stands for :data:`PORT` in its command.
    """

    role: Role
    host: str
    port: int

    def poll(self) -> int | None:
        """Return its exit status, negative for a signal; None while it runs. Does not block."""
        ...

    @property
    def lost(self) -> str | None:
        """Why it ended without an exit status of its own, such as the loss of its node."""
        ...

    def stop(self, patience: float = 10.0) -> None:
        """End it with everything that it started: SIGTERM, and SIGKILL after so many seconds.

        Safe to call twice, and after the loss of its node.
        """
        ...


class Fleet(Protocol):
    """Places processes.

    Attributes:
        host: Address of this process's machine, as the placed processes reach it.
    """

    host: str

    def reserve(self, demand: Sequence[tuple[Role, int, Resources]]) -> None:
        """Set aside what a whole run needs, all of it or nothing, before anything starts.

        Args:
            demand: Roles, how many processes of each, and what each process needs.

        Raises:
            ConfigError: If the resources are not there; names what is missing, and where.
        """
        ...

    def place(self, role: Role, resources: Resources, command: Command) -> Handle:
        """Start one process in what was reserved for its role.

        Raises:
            ConfigError: If all of it is taken, or the program does not exist there.
            PlacementError: If the machine for it was lost; the call may be retried.
        """
        ...

    def stop(self) -> None:
        """End every process that was placed, and give back what was reserved. Safe twice."""
        ...
