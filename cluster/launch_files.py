"""Files that start a run under a scheduler: SLURM, or Kubernetes with KubeRay.

The files are printed to be read and changed. Both start one Ray on each node, and `vf-rl` on the
first of them; a run that was interrupted is resumed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vf.cluster.capacity import GIB, NAMES, Demand, Node, describe, missing
from vf.cluster.fleet import Resources
from vf.runtime.errors import ConfigError

NODE_GPUS = 8  # where it is not said
POD_FOLDER = "/etc/vf-rl"  # where pods find a run's files
NAME_LENGTH = 40  # of a RayJob, whose services and pods have longer ones


@dataclass(frozen=True)
class NodeSize:
    """What each node has for the run; all are alike.

    Attributes:
        gpus: GPUs.
        cpus: Cores.
        memory: GiB of main memory.
        whole: Whether the run has the nodes to itself.
    """

    gpus: int
    cpus: int
    memory: int
    whole: bool = True

    @classmethod
    def of(cls, needed: int, gpus: int | None, cpus: int | None, memory: int | None) -> NodeSize:
        """Return what a run asks of each node.

        Without a number of GPUs, nodes are taken to have eight, of which a run that can do with
        fewer takes its part. By default there are 8 cores and 64 GiB for each GPU; or for two, if
        there are fewer.

        Args:
            needed: GPUs of the whole run.
            gpus: GPUs of a node.
            cpus: CPU cores of a node.
            memory: Memory of a node, in GiB.
        """
        taken = min(NODE_GPUS, needed) if gpus is None else gpus
        shares = max(2, taken)
        whole = gpus is not None or needed >= NODE_GPUS
        return cls(taken, cpus or 8 * shares, memory or 64 * shares, whole)

    @property
    def resources(self) -> Resources:
        """What it has, as a fleet counts."""
        return Resources(self.cpus, self.gpus, self.memory * GIB)


def nodes_needed(demand: Demand, node: NodeSize) -> int:
    """Return how many nodes hold the processes of a run.

    Raises:
        ConfigError: If a process fits on no node.
    """
    empty = Node("a node", node.resources)
    for role, count, size in demand:
        if count and missing([(role, 1, size)], [empty]):
            raise ConfigError(
                f"no node has room for one {NAMES[role]} with {describe(size)}: a node has "
                f"{describe(empty.has)}. Say what nodes have with --gpus-per-node, --cpus-per-node "
                "and --memory-per-node, or ask for less"
            )
    most = sum(count for _, count, _ in demand)
    return next(nodes for nodes in range(1, most + 1) if not missing(demand, [empty] * nodes))


def roles(demand: Demand) -> list[str]:
    """Return the processes of a run in words, a line for each role."""
    return [
        f"{count} {NAMES[role]}{'s' * (count != 1)}, each with {describe(size)}"
        for role, count, size in demand
        if count
    ]


@dataclass(frozen=True)
class Job:
    """A run, as a launch file sees it.

    Attributes:
        title: What it is, in words.
        name: Of the job: lower-case letters and digits, with hyphens between them.
        run_name: Of the run's folder; empty where each job gets a run of its own.
        nodes: How many there are.
        node: What each has.
        ray: Whether a Ray is started on each node.
        placed: What runs on them, in words.
        settings: ``KEY=VALUE`` that the run is started with, beside its TOML.
    """

    title: str
    name: str
    run_name: str
    nodes: int
    node: NodeSize
    ray: bool
    placed: Sequence[str]
    settings: Sequence[str] = ()


def job_name(text: str) -> str:
    """Return a name that Kubernetes accepts, too: that of a TOML, say."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return (plain if plain[:1].isalpha() else f"run-{plain}")[:NAME_LENGTH].strip("-")


def slurm(job: Job, config: Path, runs: Path, programs: Path, folder: Path) -> str:
    """Return a batch script for SLURM.

    Args:
        job: The run.
        config: Its TOML.
        runs: The folder in which runs have theirs.
        programs: The folder with `vf-rl` and `ray`.
        folder: The working directory.
    """
    return _render(
        "slurm.sh.jinja",
        job,
        run_name=shlex.quote(job.run_name) if job.run_name else f"{job.name}-$SLURM_JOB_ID",
        config=shlex.quote(str(config)),
        runs=shlex.quote(str(runs)),
        programs=shlex.quote(str(programs)),
        folder=str(folder),
    )


@dataclass(frozen=True)
class Pods:
    """What pods are made of.

    Attributes:
        image: With vf-rl, Ray and what else the run needs.
        ray_version: That of the image; empty if it is not known.
        files: Names and texts of files that each pod finds in :data:`POD_FOLDER`: the TOML first,
            then what it names.
        settings: ``KEY=VALUE`` that name those files.
    """

    image: str
    ray_version: str
    files: Mapping[str, str]
    settings: Sequence[str] = ()


def kuberay(job: Job, pods: Pods) -> str:
    """Return a manifest for Kubernetes with KubeRay: a ConfigMap and a RayJob."""
    config, *_ = pods.files
    job = replace(job, settings=[*job.settings, *pods.settings])
    name = shlex.quote(job.run_name or job.name)
    start = _render("start.sh.jinja", job, run_name=name, config=config, folder=POD_FOLDER)
    files = {name: text.rstrip("\n") for name, text in {**pods.files, "start.sh": start}.items()}
    return _render("kuberay.yaml.jinja", job, pods=pods, files=files, folder=POD_FOLDER)


def _render(template: str, job: Job, **more: object) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("vf.cluster"),
        undefined=StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["shell"] = shlex.quote
    return environment.get_template(template).render(job=job, **more)
