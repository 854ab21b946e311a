"""What a worker process and the trainer's process send each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vf.traces.trace import Failure, Score
from vf.trainer.settings.config import Config

MODULE = "vf.trainer.collecting.worker"

# What a rollout does: its number, the activity, turns so far, and seconds since it began that.
Doing = tuple[int, str, int, float]
# What became of a trace in its group: score, error, and the trace as JSON.
Scored = tuple[Score | None, Failure | None, bytes]


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """What a worker runs rollouts with. It is sent to the worker.

    Attributes:
        config: The run's settings.
        artifacts: Folder of the run in which episodes may keep files.
        path: Where the trainer's process looks for modules.
        registrars: The modules that register the environments when they are imported, of those
            that are registered in code, by the environments' names.
        number: The worker's, from 0.
        count: How many workers there are.
        servers_answered: Whether the inference servers have answered another worker.
    """

    config: Config
    artifacts: Path | None
    path: Sequence[str]
    registrars: Mapping[str, str]
    number: int
    count: int
    servers_answered: bool = False
