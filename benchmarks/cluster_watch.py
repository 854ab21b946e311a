"""The resources that the processes of `cluster.py` use, and the lag of their event loops.

In every process in which rollouts run, a timer of the event loop is looked at: how late it comes is
for how long anything else there had to wait. The measurements go to a file in the folder that
``CLUSTER_WATCH`` names. Where other work takes the machine's cores, Linux says for how long a
thread was ready and had none; what is left without that is said beside what was measured.
"""

from __future__ import annotations

import asyncio
import math
import os
import weakref
from array import array
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

PERIOD = 0.05  # seconds between two looks
KEPT = 20  # measurements that are written at once

_watched: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[None]] = (
    weakref.WeakKeyDictionary()
)
# What a process is, by its command line.
KINDS = {
    "slow_server.py": "server",
    "collecting.worker": "worker",
    "cluster_run.py": "trainer",
}


class Cores:
    """For how long this thread was ready to run and no core was free; 0 where that is not known."""

    def __init__(self) -> None:
        self._file = None
        with suppress(OSError):
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)

    def waited(self) -> float:
        """Return the seconds so far."""
        return int(os.pread(self._file, 100, 0).split()[1]) / 1e9 if self._file else 0.0


async def watch_loop() -> None:
    """Have the running event loop watched from now on, if it is to be and is not yet."""
    loop, folder = asyncio.get_running_loop(), os.environ.get("CLUSTER_WATCH")
    if folder is not None and loop not in _watched:
        path = Path(folder) / f"{os.getpid()}-{id(loop)}.f64"
        _watched[loop] = loop.create_task(_watch(loop, path))


async def _watch(loop: asyncio.AbstractEventLoop, path: Path) -> None:
    late: array[float] = array("d")  # and after each how much of it no core was free
    cores = Cores()
    while True:
        due, before = loop.time() + PERIOD, cores.waited()
        await asyncio.sleep(PERIOD)
        late.extend((loop.time() - due, cores.waited() - before))
        if len(late) == 2 * KEPT:
            with path.open("ab") as file:
                late.tofile(file)
            del late[:]


def lateness(folder: Path) -> dict[str, float]:
    """Return how late timers came, in seconds: in 50 and 99 of 100 cases, of the worst loop.

    ``own_p99`` is without the time in which the loop was ready and no core was free.
    All are infinite if no loop was watched for long enough: nothing shows that none was late.
    """
    worst = {"p50": 0.0, "p99": 0.0, "own_p99": 0.0, "loops": 0}
    for path in folder.glob("*.f64"):
        found: array[float] = array("d")
        found.frombytes(path.read_bytes())
        late, waited = found[::2], found[1::2]
        own = [max(0.0, a - b) for a, b in zip(late, waited, strict=True)]
        worst["loops"] += 1
        for name, values, share in (
            ("p50", late, 0.5),
            ("p99", late, 0.99),
            ("own_p99", own, 0.99),
        ):
            ordered = sorted(_every(values))
            worst[name] = max(worst[name], ordered[math.ceil(share * len(ordered)) - 1])
    if not worst["loops"]:
        worst |= dict.fromkeys(("p50", "p99", "own_p99"), math.inf)
    return worst


def _every(late: Iterable[float]) -> Iterator[float]:
    """Yield also how late the timers would have been that were due while one was late.

    Without them a loop that pauses for seconds would count as often as a period does.
    """
    for each in late:
        while each > PERIOD:
            yield each
            each -= PERIOD
        yield max(0.0, each)


@dataclass
class Processes:
    """The most that a run's processes had, by what they are; looked at twice a second.

    Attributes:
        memory: Bytes that a process of the kind has to itself at most.
        files: Open files of a process of the kind at most.
        seconds: CPU time of all of the kind together.
    """

    memory: dict[str, int] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)
    _cpu: dict[tuple[str, int], float] = field(default_factory=dict)

    def look(self, root: psutil.Process) -> None:
        """Measure the processes below one, and it."""
        with suppress(psutil.Error):
            for process in [root, *root.children(recursive=True)]:
                with suppress(psutil.Error):
                    self._measure(process)

    def _measure(self, process: psutil.Process) -> None:
        line = " ".join(process.cmdline())
        if "lifeline.py" in line:
            return
        kind = next((KINDS[name] for name in KINDS if name in line), None)
        if kind is None:
            return
        self.memory[kind] = max(self.memory.get(kind, 0), process.memory_info().rss)
        self.files[kind] = max(self.files.get(kind, 0), process.num_fds())
        spent = process.cpu_times()
        self._cpu[kind, process.pid] = spent.user + spent.system

    @property
    def seconds(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for (kind, _), spent in self._cpu.items():
            found[kind] = found.get(kind, 0.0) + spent
        return {kind: round(spent, 1) for kind, spent in found.items()}
