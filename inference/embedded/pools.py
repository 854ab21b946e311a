"""OpenMP's pools of threads: one for each thread that computes, which outlive its work.

Where pools have more threads together than there are cores, GNU's OpenMP has all of them sleep at
every barrier instead of waiting actively, so that each of a pass's thousands of operations pays for
waking the others up: a third of the time of a model of 135 M parameters on two cores. The thread
that generates and the one that trains take turns; who is done lets its pool go, and a new one costs
well below a millisecond.

Where other programs want the cores, threads that wait actively wait for one that does not run, and
the same model takes five times as long: there the pools stay.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from pathlib import Path

SOFT = 1  # omp_pause_soft: OpenMP 5.0, section 3.2.43
OWN = 0.5  # load that this process makes beside its computing threads, one for each core
LOAD = Path("/proc/loadavg")


def let_go() -> None:
    """End the calling thread's pool, if it has one, the OpenMP is GNU's, and cores are free.

    The next operation with several threads makes another.
    """
    libraries = _libraries()
    if libraries and _free():
        for library in libraries:
            library.omp_pause_resource_all(SOFT)


def _free() -> bool:
    """Return whether nobody else wants the cores: over the last minute, and at this moment."""
    last_minute, *_, now, _ = LOAD.read_text(encoding="ascii").split()
    runs = int(now.split("/")[0])  # this thread is one of them, an event loop may be another
    return float(last_minute) <= (os.cpu_count() or 1) + OWN and runs <= 2


@cache
def _libraries() -> list[ctypes.CDLL]:
    """Return the copies of GNU's OpenMP that this process has loaded, torch's for one."""
    if sys.platform != "linux":
        return []
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    paths = {line.split(maxsplit=5)[-1] for line in lines if "libgomp" in line}
    libraries = [ctypes.CDLL(path) for path in sorted(paths) if Path(path).is_file()]
    return [library for library in libraries if hasattr(library, "omp_pause_resource_all")]
