"""A Ray cluster of several machines, each with an address of its own on this one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.parts import REQUIRE_ALL
from vf.runtime.ports import free_port

MACHINES = 4
CPUS = 2.0  # that each of them claims to have
BYTES = 100 * 2**20  # of an object store, which a run does not use
# A lost machine is noticed within two seconds; Ray waits for 15 by default.
HEALTH = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 2,
}


class Machines:
    """The machines of a Ray cluster; the first is its head.

    Args:
        machines: How many there are at first.
        jobs: Whether the head takes jobs. Machines that are one in truth share the folder of a
            job's files, and one of them may remove it, so such a cluster should have one only.
    """

    def __init__(self, machines: int = MACHINES, *, jobs: bool = False) -> None:
        from ray.cluster_utils import Cluster

        self.count = 0
        self.ray = Cluster()
        for number in range(machines):
            port = free_port("127.0.0.1") if jobs else None
            first = {"include_dashboard": jobs, "dashboard_port": port, "_system_config": HEALTH}
            self.add(**(first if number == 0 else {}))

    @property
    def address(self) -> str:
        """Of the cluster."""
        return str(self.ray.address)

    @property
    def url(self) -> str:
        """Where its head takes jobs."""
        return f"http://{self.ray.head_node.webui_url}"

    def add(self, **options: Any) -> Any:
        """Add a machine and return it."""
        self.count += 1
        host = f"127.0.1.{self.count}"
        settings = {"num_cpus": CPUS, "object_store_memory": BYTES, **options}
        # By default all agents have one port, also those of a cluster that another test has.
        settings |= {"dashboard_agent_listen_port": free_port(host)}
        return self.ray.add_node(node_ip_address=host, **settings)

    def lose(self, host: str) -> None:
        """Kill all of Ray's processes on a machine."""
        (node,) = (each for each in self.ray.worker_nodes if each.node_ip_address == host)
        self.ray.remove_node(node, allow_graceful=False)


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    """Yield a cluster of four machines."""
    with _ray():
        made = Machines()
        try:
            yield made
        finally:
            made.ray.shutdown()


@pytest.fixture(scope="module")
def job_server() -> Iterator[Machines]:
    """Yield a cluster of one machine, which takes jobs."""
    with _ray():
        made = Machines(1, jobs=True)
        try:
            yield made
        finally:
            made.ray.shutdown()


@contextmanager
def _ray() -> Iterator[None]:
    """Set what Ray's processes are to inherit."""
    if not REQUIRE_ALL:
        pytest.importorskip("ray", reason="Ray is not installed: pip install '.[ray]'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # As where a virtual environment is active: a job's command is looked for on the path.
        programs = Path(sys.executable).parent
        patch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
        yield
