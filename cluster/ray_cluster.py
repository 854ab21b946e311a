"""A Ray cluster before a run uses it: reached, measured, and its machines compared."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vf.cluster.capacity import Node
from vf.cluster.fleet import Resources
from vf.cluster.ray_node import JOB, Report, report
from vf.runtime.errors import ConfigError
from vf.runtime.extras import load

REACH_SECONDS = 10.0  # for a connection to the cluster's address
REPORT_SECONDS = 60.0  # for a machine's report; its first process has to start
CLOCK_SECONDS = 5.0  # by which clocks may differ, beyond what cannot be measured
AUTO = "auto"
NOT_HERE = (
    "run `vf-rl` on a machine of the cluster, or submit the run to it with cluster.address = "
    '"http://HEAD:8265"'
)


def load_ray() -> Any:
    """Return the package ``ray``.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        return load("ray", "ray")
    except ConfigError as error:
        raise ConfigError(f'cluster.backend = "ray": {error}') from error


def connect(address: str, namespace: str, runtime_env: Mapping[str, Any]) -> Any:
    """Join a Ray cluster as a driver, and return the package ``ray``.

    Args:
        address: ``auto`` for the cluster that this machine is in, or ``HOST:PORT`` of its control
            service, which is mostly on port 6379.
        namespace: Of what is created.
        runtime_env: What Ray brings to the machines before a process starts there. In a submitted
            job that is the job's.

    Raises:
        ConfigError: Ray is not installed, no cluster answers there, this machine is not in it, or
            has another version of Ray or Python.
    """
    ray = load_ray()
    check_address(address)
    where = f"cluster.address = {address!r}"
    if JOB in os.environ:
        runtime_env = {}
    try:
        with _handlers_kept():
            ray.init(
                address=address,
                namespace=namespace,
                runtime_env=dict(runtime_env) or None,
                log_to_driver=False,
                logging_level="ERROR",
                configure_logging=False,
            )
    except ConnectionError as error:
        if address == AUTO:
            raise ConfigError(
                f"{where}: no Ray cluster runs on this machine; start one (`ray start --head`), or "
                f"{NOT_HERE}"
            ) from error
        raise ConfigError(f"{where}: {_line(error)}; {NOT_HERE}") from error
    except (RuntimeError, ValueError) as error:
        if "ersion mismatch" in str(error):
            raise ConfigError(
                f"{where}: {_flat(error)} Install the cluster's versions of Ray and Python here, "
                'or submit the run with cluster.address = "http://HEAD:8265"'
            ) from error
        raise ConfigError(f"{where}: {_line(error)}; {NOT_HERE}") from error
    return ray


def check_address(address: str) -> None:
    """Find out whether anything listens at an address, for Ray would try for minutes.

    Raises:
        ConfigError: Nothing does, or it is not an address.
    """
    where = f"cluster.address = {address!r}"
    if address == AUTO and (address := os.environ.get("RAY_ADDRESS", AUTO)) == AUTO:
        return
    if address.startswith("ray://"):
        raise ConfigError(f"{where} is for Ray's interactive client; {NOT_HERE}")
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(
            f'{where}: it must be "auto", "HOST:PORT" of a machine in the cluster, mostly with '
            'port 6379, or "http://HEAD:8265" to submit the run'
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
    except OSError as error:
        why = error.strerror or str(error)
        raise ConfigError(
            f"{where} cannot be reached from here ({why}). Is the cluster running, and is this "
            f"its address? Otherwise {NOT_HERE}"
        ) from error


def machines(ray: Any) -> list[Node]:
    """Return the machines of the cluster that are alive."""
    return [
        Node(node["NodeManagerAddress"], _resources(node["Resources"]))
        for node in ray.nodes()
        if node["Alive"]
    ]


def free(ray: Any) -> Resources:
    """Return what nothing in the cluster uses at present."""
    return _resources(ray.available_resources())


def _resources(found: Mapping[str, float]) -> Resources:
    return Resources(found.get("CPU", 0.0), int(found.get("GPU", 0)), int(found.get("memory", 0)))


def check_machines(ray: Any, nodes: Sequence[str], shared: Sequence[Path]) -> None:
    """Compare the machines on which processes will run with this one.

    Args:
        ray: The package, connected.
        nodes: Ray's ids of the machines.
        shared: Folders that all of them must see.

    Raises:
        ConfigError: A machine cannot run this program, has other versions, a clock that differs,
            or does not see a folder.
    """
    own = report({}, "this machine")
    with _marked(shared) as marks:
        found = [_report_of(ray, node, marks) for node in nodes]
    compare(own, found)


def _report_of(ray: Any, node: str, marks: Mapping[str, str]) -> tuple[Report, float]:
    """Return a machine's report, and by how many seconds at least its clock is ahead of this one.

    Raises:
        ConfigError: It cannot run this program.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(node, soft=False)
    task = ray.remote(report).options(num_cpus=0, max_retries=0, scheduling_strategy=there)
    try:
        ray.get(task.remote(marks), timeout=REPORT_SECONDS)  # which starts a process
        before = time.time()
        found: Report = ray.get(task.remote(marks), timeout=REPORT_SECONDS)
        after = time.time()
    except Exception as error:  # Ray's are many, and the report's own arrive as their subclasses
        hosts = {each["NodeID"]: each["NodeManagerAddress"] for each in ray.nodes()}
        raise ConfigError(
            f"the machine {hosts.get(node, node)} of the cluster cannot run vf-rl: {_line(error)}. "
            "Start its Ray in the image or environment that this machine has, or name the "
            "packages in cluster.runtime_env"
        ) from error
    ahead = max(0.0, found.clock - after) - max(0.0, before - found.clock)
    return found, ahead


def compare(own: Report, found: Sequence[tuple[Report, float]]) -> None:
    """Look for machines that differ from this one in what must be equal.

    Args:
        own: This machine's report.
        found: Those of others, each with the seconds by which its clock is ahead.

    Raises:
        ConfigError: Some do; names each, and how.
    """
    wrong = []
    for each, ahead in found:
        for name in sorted({*own.versions, *each.versions}):
            here, there = own.versions.get(name, "none"), each.versions.get(name, "none")
            if here != there:
                wrong.append(f"{each.host} has {name} {there}, and {own.host} {here}")
        if each.code != own.code and own.versions == each.versions:
            wrong.append(f"{each.host} has other files of vf-rl than {own.host}")
        if abs(ahead) > CLOCK_SECONDS:
            side = "ahead of" if ahead > 0 else "behind"
            wrong.append(f"the clock of {each.host} is {abs(ahead):.0f} s {side} {own.host}'s")
        wrong += [
            f"{each.host} does not see {folder}, which must be on a file system that all machines "
            "share: set trainer.args.output_dir to such a folder"
            for folder in each.missing
        ]
    if wrong:
        raise ConfigError(
            "the machines of the cluster do not fit together: " + "; ".join(dict.fromkeys(wrong))
        )


@contextlib.contextmanager
def _marked(folders: Sequence[Path]) -> Iterator[dict[str, str]]:
    """Put a file into each folder while the block runs; return them by folder.

    Raises:
        ConfigError: It cannot be written.
    """
    marks: dict[str, str] = {}
    try:
        for folder in folders:
            mark = folder.absolute() / f".vf-rl-{secrets.token_hex(8)}"
            try:
                folder.mkdir(parents=True, exist_ok=True)
                mark.touch()
            except OSError as error:
                raise ConfigError(f"cannot write to {folder}: {error.strerror}") from error
            marks[str(folder.absolute())] = str(mark)
        yield marks
    finally:
        for file in marks.values():
            Path(file).unlink(missing_ok=True)


@contextlib.contextmanager
def _handlers_kept() -> Iterator[None]:
    """Keep this process's handling of signals, of which Ray takes over one as it connects."""
    try:
        before = signal.getsignal(signal.SIGTERM)
        yield
    finally:
        with contextlib.suppress(ValueError):  # not the main thread, so Ray changed nothing
            signal.signal(signal.SIGTERM, before)


def _line(error: BaseException) -> str:
    """Return the most telling line of an error: a remote traceback ends with it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return (named or lines or [type(error).__name__])[-1 if named else 0]


def _flat(error: BaseException) -> str:
    return " ".join(str(error).split())
