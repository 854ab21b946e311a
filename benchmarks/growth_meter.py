"""CPU time and peak memory of the points of ``benchmarks/growth.py``."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TypeVar

T = TypeVar("T")
ENOUGH = 0.5  # seconds of CPU time, after which a point is not repeated
REPEATS = 5


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a curve: CPU time in s and memory in bytes, of one unit."""

    curve: str
    unit: str
    seconds: float
    memory: float


class Meter:
    """Measures the points of one axis at one size."""

    def __init__(self) -> None:
        self.points: list[Point] = []

    def __call__(self, curve: str, unit: str, units: int, body: Callable[[], T]) -> T:
        """Measure a body that does the work of so many units; return what it returned."""
        gc.collect()
        before = _status("VmRSS", reset=True)
        spent: list[float] = []
        while not spent or (sum(spent) < ENOUGH and len(spent) < REPEATS):
            begun = time.process_time()
            returned = body()
            spent.append(time.process_time() - begun)
            if len(spent) == 1:
                grown = _status("VmHWM") - before
        self.points.append(Point(curve, unit, median(spent) / units, max(0, grown) / units))
        return returned


def _status(field: str, *, reset: bool = False) -> int:
    """Return a figure of this process's memory, in bytes; first let its peak start again."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    text = Path("/proc/self/status").read_text()
    return 1024 * int(text.partition(f"{field}:")[2].split(maxsplit=1)[0])
