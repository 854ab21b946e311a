"""Whether a cluster has what a run asks for, and what is missing if not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vf.cluster.fleet import Resources, Role

GIB = 2**30
NAMES = {"rank": "trainer rank", "server": "inference server", "worker": "rollout worker"}
# Which setting says how many there are, and of what size.
SETTINGS = {
    "rank": "trainer.gpus and cluster.rank",
    "server": "inference.replicas, inference.gpus_per_replica and cluster.server",
    "worker": "rollouts.workers and cluster.worker",
}

Demand = Sequence[tuple[Role, int, Resources]]


@dataclass(frozen=True)
class Node:
    """A machine of the cluster, with what it has in all.

    Attributes:
        host: Its address.
        has: What it has.
    """

    host: str
    has: Resources


def missing(demand: Demand, nodes: Sequence[Node]) -> str | None:
    """Return what a cluster lacks for a run, in words; None if nothing.

    Processes are dealt out largest first, each to the first machine that has room: nearly as
    Ray does.
    """
    short = _short(demand, nodes)
    if short is None:
        return None
    roles = "; ".join(
        f"{count} {NAMES[role]}{'s' * (count != 1)} with {describe(size)}"
        for role, count, size in demand
        if count
    )
    machines = "; ".join(f"{node.host}: {describe(node.has)}" for node in nodes) or "no machine"
    settings = ", or ".join(SETTINGS[role] for role, count, _ in demand if count)
    return f"{short}. The run needs {roles}. The cluster has {machines}. Change {settings}"


def _short(demand: Demand, nodes: Sequence[Node]) -> str | None:
    """Return the first thing that is missing."""
    for kind in ("gpus", "cpus", "memory"):
        needed = sum(count * getattr(size, kind) for _, count, size in demand)
        there = sum(getattr(node.has, kind) for node in nodes)
        if needed > there:
            return f"{amount(kind, needed - there)} are missing"
    room = [[node.has.gpus, node.has.cpus, node.has.memory] for node in nodes]
    pieces = [(role, size) for role, count, size in demand for _ in range(count)]
    pieces.sort(key=lambda piece: (piece[1].gpus, piece[1].cpus, piece[1].memory), reverse=True)
    for role, size in pieces:
        need = [size.gpus, size.cpus, size.memory]
        free = next(
            (left for left in room if all(n <= has for n, has in zip(need, left, strict=True))),
            None,
        )
        if free is None:
            return f"no machine has room for one more {NAMES[role]} with {describe(size)}"
        free[:] = [has - n for n, has in zip(need, free, strict=True)]
    return None


def amount(kind: str, number: float) -> str:
    """Return a quantity of GPUs, CPUs or memory in words."""
    if kind == "memory":
        return f"{number / GIB:.1f} GiB of memory"
    return f"{number:g} {kind[:-1].upper()}{'s' * (number != 1)}"


def describe(resources: Resources) -> str:
    """Return resources in words."""
    kinds = [("cpus", resources.cpus), ("gpus", resources.gpus), ("memory", resources.memory)]
    return ", ".join(amount(kind, number) for kind, number in kinds if number or kind == "cpus")
