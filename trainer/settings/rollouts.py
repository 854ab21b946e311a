"""``[rollouts]``: where rollouts run. Loads no torch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from vf.inference.settings import Seconds, Strict


class RolloutsConfig(Strict):
    """``[rollouts]``: where rollouts run."""

    workers: Annotated[int, Field(ge=0)] | Literal["auto"] = "auto"
    """Number of processes that run rollouts, each with its own copy of the environment and without
    a GPU. 0 keeps rollouts in the trainer's process. `auto` takes one for every 32 of
    `max_concurrent`, at most one for every 8 cores and at most 8, where the engine is a server of
    its own."""
    startup_timeout: Seconds = 600.0
    """Seconds until a worker must have connected and made its environment."""
    restarts_per_hour: Annotated[int, Field(ge=0)] = 20
    """How often within an hour dead workers are replaced before the run stops, for all workers
    together.
    """

    @field_validator("workers", mode="before")
    @classmethod
    def _is_count(cls, workers: Any) -> Any:
        if workers != "auto" and (type(workers) is not int or workers < 0):
            raise ValueError(f'{workers!r} is neither a number of processes nor "auto"')
        return workers
