"""Processes on a cluster under Ray: an actor around each, all in one placement group.

Ray places, notices the loss of machines, and ends what a lost driver leaves behind. It carries no
data of a run but the output of its processes.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Self

from vf.cluster.capacity import Demand, describe, missing
from vf.cluster.fleet import Command, Resources, Role
from vf.cluster.process import open_log
from vf.cluster.ray_cluster import check_machines, connect, free, machines
from vf.cluster.ray_node import DEVICES, Post, elsewhere
from vf.runtime.errors import ConfigError, PlacementError

GROUP_SECONDS = 30.0  # until what is free has been set aside
PLACE_SECONDS = 120.0  # until a process has started, at least; Ray may have to find a machine
RETRY_SECONDS = 1.0
THREADS = 4  # of an actor: one waits for output while another stops the process


@dataclass(frozen=True)
class Reservation:
    """What a run has set aside, and how its other processes find it.

    Attributes:
        address: Of the cluster.
        namespace: Of the run in it.
        group: The placement group's name.
        bundles: Role and resources of each bundle of the placement group.
        runtime_env: What Ray brings to the machines.
        wait: Seconds for machines that are still to come.
    """

    address: str
    namespace: str
    group: str
    bundles: list[tuple[Role, Resources]]
    runtime_env: dict[str, Any] = field(default_factory=dict)
    wait: float = 0.0

    def to_text(self) -> str:
        """Return it for an environment variable."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Return what :meth:`to_text` was called on."""
        fields = json.loads(text)
        fields["bundles"] = [(role, Resources(**size)) for role, size in fields["bundles"]]
        return cls(**fields)

    def count(self, role: Role) -> int:
        """Return how many places there are for a role."""
        return sum(owner == role for owner, _ in self.bundles)


class RayFleet:
    """Places processes on the machines of a Ray cluster.

    Args:
        address: Address of the cluster; see :func:`~vf.cluster.ray_cluster.connect`.
        wait: Seconds for which machines that are still to come are waited for, at first and after
            a loss.
        runtime_env: Ray's ``runtime_env``, set up on the machines before a process starts there.
        shared: Folders that the machines must all see.

    Attributes:
        host: Address of this process's machine, as the others reach it.
        reservation: What was set aside; None before.

    Raises:
        ConfigError: If the cluster cannot be reached, or differs from this machine.
    """

    def __init__(
        self,
        address: str,
        *,
        wait: float = 0.0,
        runtime_env: Mapping[str, Any] | None = None,
        shared: Sequence[Path] = (),
    ) -> None:
        self._namespace = f"vf-rl-{secrets.token_hex(6)}"
        self._wait, self._shared = wait, shared
        self.reservation: Reservation | None = None
        self._own = True  # whether the group is this fleet's to remove
        self._connect(address, runtime_env or {})

    @classmethod
    def joined(cls, reservation: Reservation, host: str | None = None) -> Self:
        """Return the fleet of a run's other process, in what the first one has reserved.

        Args:
            reservation: Reservation of the run's first process.
            host: Address of this machine, if it is known.

        Raises:
            ConfigError: If the cluster cannot be reached.
            PlacementError: If the reservation is gone.
        """
        fleet = cls.__new__(cls)
        fleet._namespace = reservation.namespace
        fleet._wait, fleet._shared = reservation.wait, ()
        fleet.reservation, fleet._own = reservation, False
        fleet._connect(reservation.address, reservation.runtime_env)
        fleet.host = host or fleet.host
        try:
            fleet._group = fleet._ray.util.get_placement_group(reservation.group)
        except ValueError as error:
            fleet.stop()
            raise PlacementError(f"the run's placement group is gone: {error}") from error
        return fleet

    def _connect(self, address: str, runtime_env: Mapping[str, Any]) -> None:
        self._ray = connect(address, self._namespace, runtime_env)
        context = self._ray.get_runtime_context()
        self._address = str(context.gcs_address)
        self.host = str(self._ray.util.get_node_ip_address())
        self._group: Any = None
        self._handles: dict[int, RayHandle] = {}  # by bundle
        self._lock = threading.Lock()

    @property
    def has_gpus(self) -> bool:
        """Whether the cluster has GPUs, or machines that are waited for may have some."""
        return self._wait > 0 or any(node.has.gpus for node in machines(self._ray))

    def reserve(self, demand: Sequence[tuple[Role, int, Resources]]) -> None:
        """Set aside what a whole run needs; see :class:`~vf.cluster.fleet.Fleet`.

        Raises:
            ConfigError: If the cluster is too small, or its machines do not fit together.
        """
        if self.reservation is not None:
            self._check_reserved(demand)
            return
        short = missing(demand, machines(self._ray))
        if short and not self._wait:
            raise ConfigError(f"the Ray cluster is too small: {short}")
        pieces = [(role, size) for role, count, size in demand for _ in range(count)]
        if not pieces:
            return
        name = f"{self._namespace}-{secrets.token_hex(4)}"
        bundles = [_bundle(size) for _, size in pieces]
        self._group = self._ray.util.placement_group(bundles, strategy="PACK", name=name)
        try:
            self._await(demand)
            table = self._ray.util.placement_group_table(self._group)
            nodes = sorted(set(table["bundles_to_node_id"].values()))
            check_machines(self._ray, nodes, self._shared, self._wait)
        except BaseException:
            self._give_back()
            raise
        environment = dict(self._ray.get_runtime_context().runtime_env)
        self.reservation = Reservation(
            self._address, self._namespace, name, pieces, environment, self._wait
        )

    def _await(self, demand: Demand) -> None:
        """Wait until all has been set aside, which makes an autoscaler add machines.

        Raises:
            ConfigError: If that takes too long; says why.
        """
        seconds = max(GROUP_SECONDS, self._wait)
        if self._group.wait(timeout_seconds=seconds):
            return
        if short := missing(demand, machines(self._ray)):
            raise ConfigError(
                f"the Ray cluster is too small, after cluster.wait = {self._wait:g} s: {short}"
            )
        raise ConfigError(
            "the Ray cluster has what the run needs, but others use it: "
            f"{describe(free(self._ray))} are free, and in {seconds:.0f} s there were no more. Try "
            "again later, or raise cluster.wait"
        )

    def _give_back(self) -> None:
        group, self._group = self._group, None
        if self._own and group is not None:
            self._ray.util.remove_placement_group(group)

    def _check_reserved(self, demand: Sequence[tuple[Role, int, Resources]]) -> None:
        assert self.reservation is not None
        for role, count, _ in demand:
            if count > (there := self.reservation.count(role)):
                raise ConfigError(f"the run has reserved {there} places for {role}s, not {count}")

    def place(self, role: Role, resources: Resources, command: Command) -> RayHandle:
        """Start one process; see :class:`~vf.cluster.fleet.Fleet`.

        It has all that was reserved for it, which may be more than what is asked for here.

        Raises:
            ConfigError: If all places of its role are taken, there is no such program there, or the
                log cannot be written.
            PlacementError: If its machine was lost, or no machine was found in time.
        """
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        with self._lock:
            index, resources = self._take(role)
            output = open_log(command.log) if command.log is not None else sys.stdout.buffer
            actor = (
                self._ray.remote(Post)
                .options(
                    num_cpus=resources.cpus,
                    num_gpus=resources.gpus,
                    memory=resources.memory or None,
                    max_concurrency=THREADS,
                    scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, index),
                )
                .remote()
            )
            handle = self._handles[index] = RayHandle(self._ray, actor, role, output)
        handle.begin(replace(command, log=None), resources, max(PLACE_SECONDS, self._wait))
        return handle

    def _take(self, role: Role) -> tuple[int, Resources]:
        """Return a bundle of a role in which nothing runs, and what it has.

        Raises:
            ConfigError: If there is none.
        """
        bundles = [] if self.reservation is None else self.reservation.bundles
        for index, (owner, resources) in enumerate(bundles):
            handle = self._handles.get(index)
            if owner == role and (handle is None or handle.ended):
                return index, resources
        count = sum(owner == role for owner, _ in bundles)
        raise ConfigError(f"all {count} places that were reserved for {role}s are taken")

    def stop(self) -> None:
        """End what was placed and leave the cluster; the first process gives back what it has."""
        if not self._ray.is_initialized():
            return
        with self._lock:
            handles, self._handles = self._handles, {}
        stopping = [threading.Thread(target=handle.stop) for handle in handles.values()]
        for thread in stopping:
            thread.start()
        for thread in stopping:
            thread.join()
        self._give_back()
        self._ray.shutdown()


class RayHandle:
    """A process in an actor. Its output is collected in a thread, which also notices its end.

    Args:
        ray: The package, connected.
        actor: A :class:`~vf.cluster.ray_node.Post`.
        role: Role of the process.
        output: Stream that receives its output.
    """

    def __init__(self, ray: Any, actor: Any, role: Role, output: BinaryIO) -> None:
        self.role, self.host, self.port = role, "", 0
        self._ray, self._actor, self._output = ray, actor, output
        self._code: int | None = None
        self._lost: str | None = None
        self._stopping = False
        self._ended = threading.Event()

    def begin(self, command: Command, resources: Resources, seconds: float) -> None:
        """Start the process within so many seconds; see :meth:`RayFleet.place`."""
        errors = self._ray.exceptions
        if not resources.gpus:  # Ray hides none of a machine's GPUs then
            command = replace(command, env={DEVICES: "", **command.env})
        begun = self._actor.begin.remote(command, elsewhere(os.environ), os.getcwd())
        try:
            self.host, self.port = self._ray.get(begun, timeout=seconds)
        except BaseException as error:
            self._close()
            self._end()
            if isinstance(error, errors.GetTimeoutError):
                raise PlacementError(
                    f"no machine with {describe(resources)} for a {self.role} within "
                    f"{seconds:g} s: the one that had them was lost, or is busy"
                ) from error
            if isinstance(error, errors.RayTaskError) and isinstance(error.cause, ConfigError):
                raise error.cause from error
            if isinstance(error, errors.RayError):
                raise PlacementError(
                    f"a {self.role} could not be placed: {_reason(error)}"
                ) from error
            raise
        threading.Thread(target=self._follow, name=f"vf-{self.role}-output", daemon=True).start()

    def poll(self) -> int | None:
        """Return its exit status, negative for a signal; None while it runs or once it is lost."""
        return self._code if self._ended.is_set() else None

    @property
    def ended(self) -> bool:
        """Whether it has ended or was lost."""
        return self._ended.is_set()

    @property
    def lost(self) -> str | None:
        """Why it ended without an exit status of its own."""
        return self._lost

    def wait(self) -> None:
        """Wait until it has ended or was lost."""
        self._ended.wait()

    def stop(self, patience: float = 10.0) -> None:
        """End it with everything that it started; safe to call twice."""
        self._stopping = True
        if not self._ended.is_set():
            with suppress(self._ray.exceptions.RayError):
                # Longer than the actor needs: a machine that does not answer is given up.
                self._ray.get(self._actor.stop.remote(patience), timeout=patience + 20)
                self._ended.wait(5)
        self._end()

    def _end(self) -> None:
        self._ended.set()
        with suppress(Exception):  # the cluster has been left, or is gone
            self._ray.kill(self._actor)

    def _follow(self) -> None:
        """Collect output until the process has ended."""
        try:
            while not self._ended.is_set():
                try:
                    text, code = self._ray.get(self._actor.read.remote())
                except self._ray.exceptions.ActorUnavailableError:
                    self._ended.wait(RETRY_SECONDS)  # Ray settles whether it comes back
                    continue
                self._output.write(text)
                self._output.flush()
                if code is not None:
                    self._code = code
                    break
        except Exception as error:  # whatever Ray raises, the process can no longer be reached
            if not self._stopping:
                self._lost = _reason(error)
        finally:
            self._close()
            self._end()

    def _close(self) -> None:
        if self._output is not sys.stdout.buffer:
            self._output.close()


def _bundle(resources: Resources) -> dict[str, float]:
    amounts = {"CPU": resources.cpus, "GPU": resources.gpus, "memory": resources.memory}
    return {name: float(amount) for name, amount in amounts.items() if amount}


def _reason(error: BaseException) -> str:
    """Return why Ray lost an actor, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    relevant = [line for line in lines if "died" in line.lower() or "node" in line.lower()]
    return (relevant or lines or [type(error).__name__])[-1]
