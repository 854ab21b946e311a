"""``[cluster]``: where a run's processes are. Loads no Ray."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from vf.inference.settings import Strict


class RoleResources(Strict):
    """What each process of a role is given on a cluster, beside its GPUs."""

    cpus: Annotated[float, Field(gt=0)] = 1.0
    """Cores."""
    memory: Annotated[float, Field(ge=0)] = 0.0
    """GiB of main memory; 0 for no particular amount."""


class ClusterConfig(Strict):
    """``[cluster]``: this machine, or a Ray cluster."""

    backend: Literal["local", "ray"] = "local"
    """`local`: this machine; `ray`: the machines of a Ray cluster, which has to be running."""
    address: str = "auto"
    """Of the Ray cluster: `auto` for the one that this machine is in; `HOST:6379` from one of its
    machines; `http://HEAD:8265` to submit the run to it from elsewhere, with the TOML's folder."""
    wait: Annotated[float, Field(ge=0)] = 0.0
    """Seconds to wait for machines that have not joined yet, such as those of an autoscaler."""
    restarts_per_hour: Annotated[int, Field(ge=0)] = 3
    """How often within an hour the trainer's processes are started again from the last checkpoint
    because one of them was killed or its machine was lost."""
    runtime_env: dict[str, Any] = Field(default_factory=dict)
    """Ray's runtime environment: what it brings to the machines, such as `pip`, `py_modules`,
    `working_dir` and `env_vars`."""
    rank: RoleResources = Field(default_factory=RoleResources)
    """Each of the trainer's processes."""
    server: RoleResources = Field(default_factory=RoleResources)
    """Each inference server."""
    worker: RoleResources = Field(default_factory=RoleResources)
    """Each rollout worker."""

    @property
    def submits(self) -> bool:
        """Whether the run is submitted to the cluster from outside of it."""
        return self.backend == "ray" and self.address.startswith(("http://", "https://"))

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """Refuse settings of a cluster that would be left aside unnoticed."""
        others = sorted(self.model_fields_set - {"backend"})
        if others and "backend" not in self.model_fields_set:
            raise ValueError(f'{", ".join(others)} is for a Ray cluster: set backend = "ray", too')
        return self
