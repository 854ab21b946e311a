"""Whether a cluster is large enough for a run, and what is said if not."""

from __future__ import annotations

import pytest

from vf.cluster.capacity import GIB, Demand, Node, missing
from vf.cluster.fleet import Resources

SMALL = Node("10.0.0.1", Resources(cpus=8, gpus=2, memory=32 * GIB))
LARGE = Node("10.0.0.2", Resources(cpus=16, gpus=8, memory=64 * GIB))
RANKS: Demand = [("rank", 2, Resources(cpus=2, gpus=1))]


def test_what_fits_is_not_missing() -> None:
    demand: Demand = [*RANKS, ("server", 2, Resources(4, 4, 16 * GIB)), ("worker", 3, Resources())]
    assert missing(demand, [SMALL, LARGE]) is None


@pytest.mark.parametrize(
    ("demand", "nodes", "said"),
    [
        (RANKS, [], "2 GPUs are missing"),
        ([("worker", 9, Resources())], [SMALL], "1 CPU are missing"),
        ([("server", 1, Resources(1, 0, 40 * GIB))], [SMALL], "8.0 GiB of memory are missing"),
        (
            [("server", 2, Resources(1, 4))],
            [SMALL] * 4,
            "no machine has room for one more inference server with 1 CPU, 4 GPUs",
        ),
    ],
)
def test_the_first_thing_that_is_missing_is_named(
    demand: Demand, nodes: list[Node], said: str
) -> None:
    text = missing(demand, nodes)
    assert text is not None
    assert text.startswith(said)


def test_the_message_has_what_is_needed_what_is_there_and_what_to_change() -> None:
    assert missing([*RANKS, ("worker", 1, Resources(0.5))], [Node("10.0.0.1", Resources(2))]) == (
        "2 GPUs are missing. The run needs 2 trainer ranks with 2 CPUs, 1 GPU; 1 rollout worker "
        "with 0.5 CPUs. The cluster has 10.0.0.1: 2 CPUs. Change trainer.gpus and cluster.rank, or "
        "rollouts.workers and cluster.worker"
    )
