"""A Ray cluster before a run uses it: reached, measured, and its machines compared."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vf.cluster.capacity import Node
from vf.cluster.fleet import Resources
from vf.cluster.ray_node import JOB, Report, report
from vf.runtime.errors import ConfigError
from vf.runtime.extras import load

REACH_SECONDS = 10.0  # for a connection to the cluster's address
START_SECONDS = 600.0  # for a machine's first process, before which Ray may install packages
REPORT_SECONDS = 60.0  # for a machine's report after that
CLOCK_SECONDS = 5.0  # by which clocks may differ, beyond what cannot be measured
AUTO = "auto"
NOT_HERE = (
    "run `vf-rl` on a machine of the cluster, or submit the run to it with cluster.address = "
    '"http://HEAD:8265"'
)


def load_ray() -> Any:
    """Return the package ``ray``.

    Raises:
        ConfigError: If Ray is not installed.
    """
    try:
        return load("ray", "ray")
    except ConfigError as error:
        raise ConfigError(f'cluster.backend = "ray": {error}') from error


def connect(address: str, namespace: str, runtime_env: Mapping[str, Any]) -> Any:
    """Join a Ray cluster as a driver, and return the package ``ray``.

    Args:
        address: ``auto`` for the cluster that this machine is in, or ``HOST:PORT`` of its control
            service, which is usually on port 6379.
        namespace: Ray namespace of what is created.
        runtime_env: Ray's ``runtime_env``, set up on the machines before a process starts
            there. In a submitted job that is the job's.

    Raises:
        ConfigError: If Ray is not installed, no cluster answers there, this machine is not in it,
            or has another version of Ray or Python.
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
        ConfigError: If nothing answers there, or it is not an address.
    """
    where = f"cluster.address = {address!r}"
    if address == AUTO:
        if (address := os.environ.get("RAY_ADDRESS", AUTO)) == AUTO:
            return
        where = f"RAY_ADDRESS = {address!r}, which {where} takes,"
    if address.startswith("ray://"):
        raise ConfigError(f"{where} is for Ray's interactive client; {NOT_HERE}")
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(
            f'{where}: it must be "auto", "HOST:PORT" of a machine in the cluster, usually with '
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


def _resources(amounts: Mapping[str, float]) -> Resources:
    return Resources(
        amounts.get("CPU", 0.0), int(amounts.get("GPU", 0)), int(amounts.get("memory", 0))
    )


def check_machines(
    ray: Any, nodes: Sequence[str], shared: Sequence[Path], wait: float = 0.0
) -> None:
    """Compare the machines on which processes will run with this one.

    Args:
        ray: The package, connected.
        nodes: Ray's ids of the machines.
        shared: Folders that all of them must see.
        wait: Seconds for which a machine's first process is waited for beyond
            :data:`START_SECONDS`.

    Raises:
        ConfigError: If a machine cannot run this program, has other versions, a clock that differs,
            or does not see a folder.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    own, others = report({}, "this machine"), []
    with _marked(shared) as marks:

        def ask(node: str) -> Any:
            there = NodeAffinitySchedulingStrategy(node, soft=False)
            task = ray.remote(report)
            return task.options(num_cpus=0, max_retries=0, scheduling_strategy=there).remote(marks)

        # All at once, for Ray may have to install packages before a machine's first process.
        starting = {ask(node): node for node in nodes}
        deadline = time.monotonic() + START_SECONDS + wait
        while starting:
            left = max(0.0, deadline - time.monotonic())
            ready, _ = ray.wait([*starting], num_returns=1, timeout=left)
            if not ready:
                raise ConfigError(_late(_hosts(ray, starting.values()), START_SECONDS + wait))
            node = starting.pop(ready[0])
            try:
                ray.get(ready[0])
                before = time.time()  # the next report is at once, and says the time
                other: Report = ray.get(ask(node), timeout=REPORT_SECONDS)
                after = time.time()
            except ray.exceptions.GetTimeoutError as error:
                raise ConfigError(_late(_hosts(ray, [node]), REPORT_SECONDS)) from error
            except Exception as error:  # Ray's are many, and a report's own become their subclasses
                raise ConfigError(
                    f"the machine {_hosts(ray, [node])} of the cluster cannot run vf-rl: "
                    f"{_line(error)}. Start its Ray in the image or environment that this machine "
                    "has, or name the packages in cluster.runtime_env"
                ) from error
            ahead = max(0.0, other.clock - after) - max(0.0, before - other.clock)
            others.append((other, ahead))
    compare(own, others)


def _hosts(ray: Any, nodes: Iterable[str]) -> str:
    """Return the addresses of machines."""
    hosts = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    return ", ".join(sorted(hosts.get(node, node) for node in nodes))


def _late(hosts: str, seconds: float) -> str:
    return (
        f"no process of the run started on {hosts} within {seconds:g} s. Ray may still be "
        "installing what cluster.runtime_env names, or the machine is busy: raise cluster.wait, or "
        "start the machines' Ray in an image or environment that has the packages"
    )


def compare(own: Report, others: Sequence[tuple[Report, float]]) -> None:
    """Look for machines that differ from this one in what must be equal.

    Args:
        own: This machine's report.
        others: The other machines' reports, each with the seconds by which its clock is ahead.

    Raises:
        ConfigError: If some differ; names each, and how.
    """
    wrong = []
    for other, ahead in others:
        for name in sorted({*own.versions, *other.versions}):
            here, there = own.versions.get(name, "none"), other.versions.get(name, "none")
            if here != there:
                wrong.append(f"{other.host} has {name} {there}, and {own.host} {here}")
        if other.code != own.code and own.versions == other.versions:
            wrong.append(f"{other.host} has other files of vf-rl than {own.host}")
        if abs(ahead) > CLOCK_SECONDS:
            side = "ahead of" if ahead > 0 else "behind"
            wrong.append(f"the clock of {other.host} is {abs(ahead):.0f} s {side} {own.host}'s")
        wrong += [
            f"{other.host} does not see {folder}, which must be on a file system that all machines "
            "share: set trainer.args.output_dir to such a folder"
            for folder in other.missing
        ]
    if wrong:
        raise ConfigError(
            "the machines of the cluster do not fit together: " + "; ".join(dict.fromkeys(wrong))
        )


@contextlib.contextmanager
def _marked(folders: Sequence[Path]) -> Iterator[dict[str, str]]:
    """Put a file into each folder while the block runs; return them by folder.

    Raises:
        ConfigError: If a file cannot be written.
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
