"""A Ray cluster on this machine, of several machines that can be lost."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, Self

from killing import MARK

CPUS = 4  # that each machine claims to have
BYTES = 100 * 2**20  # of an object store, which a run does not use


class Machines:
    """Raylets, each with an address of its own on the loopback; the first is the head.

    Args:
        count: How many.

    Attributes:
        mark: What the environment of all that runs on them holds.
    """

    def __init__(self, count: int) -> None:
        self.mark = f"ray-{os.getpid()}"
        self._count = count
        self._started = 0
        self._cluster: Any = None

    @property
    def address(self) -> str:
        """Of the cluster."""
        return str(self._cluster.address)

    def __enter__(self) -> Self:
        from ray.cluster_utils import Cluster

        self._cluster = Cluster()
        for _ in range(self._count):
            self._add()
        return self

    def __exit__(self, *error: object) -> None:
        self._cluster.shutdown()

    def victims(self) -> dict[str, Callable[[], None]]:
        """Return what loses each machine but the head, by its address; another takes its place."""
        nodes = self._cluster.worker_nodes
        return {node.node_ip_address: partial(self._replace, node) for node in nodes}

    def _add(self) -> None:
        self._started += 1
        os.environ[MARK] = self.mark  # inherited by the machine, and by nothing else
        try:
            self._cluster.add_node(
                num_cpus=CPUS,
                object_store_memory=BYTES,
                node_ip_address=f"127.0.1.{self._started}",
                include_dashboard=False,
            )
        finally:
            del os.environ[MARK]

    def _replace(self, node: Any) -> None:
        self._cluster.remove_node(node, allow_graceful=False)
        self._add()
