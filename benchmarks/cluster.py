"""The gain from rollout workers and several servers: `python benchmarks/cluster.py`.

Inference servers that take time instead of computing (`slow_server.py`) answer rollouts of four
turns; everything else is real: the trainer, workers, leases, routing, traces. Three measurements,
each in a fresh process:

- *overlap*: an optimizer step of the quickstart, in one thread, alone and beside 256 rollouts under
  way, which run in the trainer's process or in a worker. Its many short operations compete for the
  interpreter's lock as the launches of a GPU's kernels do.
- *scaling*: rollouts per second of one, two and eight servers, whose batches are always full.
- *concurrency*: 10,000 rollouts under way at once on four workers, with tools that take time: the
  memory and open files of each process, and how late its event loop's timers come.

The last line is JSON: `ratio` is how much faster eight servers are than one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
from cluster_run import Work
from cluster_watch import Processes, lateness
from harness import parse, print_result, say

TARGET = 7.0  # times one server's rollouts per second, with eight
SLOWER_TARGET = 1.2  # times the trainer's time alone
LATE_TARGET = 0.1  # seconds, in 99 of 100 cases
RUN = Path(__file__).with_name("cluster_run.py")
OVERLAP = Work(
    workers=0,
    servers=1,
    slots=256,
    answer_seconds=1.0,
    tool_seconds=0.1,
    concurrent=256,
    rollouts=10_000,
    updates=8,
)
# The second: ten times as many requests, which keep an event loop busy all the time.
PACES = (1, 10)
SCALING = Work(
    workers=1,
    servers=1,
    slots=64,
    answer_seconds=2.0,
    tool_seconds=0.0,
    concurrent=80,
    rollouts=320,
)
CONCURRENCY = Work(
    workers=4,
    servers=4,
    slots=2500,
    answer_seconds=30.0,
    tool_seconds=10.0,
    concurrent=10_000,
    rollouts=10_000,
)
SERVERS = (1, 2, 8)


def measure(work: Work) -> dict[str, Any]:
    """Do one measurement in a process of its own, and watch its processes."""
    say(f"{work.rollouts:,} rollouts, {work.workers} workers, {work.servers} servers")
    with tempfile.TemporaryDirectory(prefix="watch-") as folder:
        out = Path(folder) / "found.json"
        environ = os.environ | {"CLUSTER_WATCH": folder, "OMP_NUM_THREADS": "1"}
        environ["CUDA_VISIBLE_DEVICES"] = ""
        command = [sys.executable, str(RUN), json.dumps(asdict(work)), str(out)]
        processes, ended = Processes(), threading.Event()
        with subprocess.Popen(command, env=environ) as process:
            root = psutil.Process(process.pid)

            def watch() -> None:
                while not ended.wait(0.5):
                    processes.look(root)

            watcher = threading.Thread(target=watch)
            watcher.start()
            try:
                code = process.wait()
            finally:
                ended.set()
                watcher.join()
        if code:
            sys.exit(f"{work}: it ended with {code}")
        found: dict[str, Any] = json.loads(out.read_text())
        found["late"] = lateness(Path(folder))
    found["memory_mib"] = {kind: most >> 20 for kind, most in processes.memory.items()}
    return found | {"files": processes.files, "cpu_seconds": processes.seconds}


def overlap(work: Work, *, smoke: bool) -> dict[str, dict[str, Any]]:
    """Measure what rollouts under way cost the trainer, in its process and in a worker."""
    found = {}
    for workers in (1,) if smoke else (0, 1):
        for pace in PACES[:1] if smoke else PACES:
            seconds = work.answer_seconds / pace
            shape = replace(work, workers=workers, answer_seconds=seconds)
            got = found[f"{workers} workers, answers in {seconds:g} s"] = measure(shape)
            print(
                f"overlap      {workers} workers, answers in {seconds:g} s: a step takes "
                f"{got['alone']:.3f} s alone and {got['beside']:.3f} s beside {got['under_way']} "
                f"rollouts, {got['slower']:.2f} times as long ({got['own_slower']:.2f} without "
                "waiting for a core)",
                flush=True,
            )
    return found


def scaling(work: Work, *, smoke: bool) -> dict[str, dict[str, Any]]:
    """Measure the rollouts per second of several servers."""
    found = {}
    for count in SERVERS[:2] if smoke else SERVERS:
        shape = replace(
            work,
            servers=count,
            concurrent=count * work.concurrent,
            rollouts=count * work.rollouts,
        )
        got = found[str(count)] = measure(shape)
        times = got["rollouts_per_s"] / found["1"]["rollouts_per_s"]
        print(
            f"scaling      {count} servers: {got['rollouts_per_s']:.2f} rollouts/s, "
            f"{times:.2f} times one server's",
            flush=True,
        )
        got["times"] = times
    return found


def concurrency(work: Work, *, smoke: bool) -> dict[str, Any]:
    """Measure what very many rollouts under way take."""
    got = measure(work)
    memory = ", ".join(f"{kind} {most} MiB" for kind, most in got["memory_mib"].items())
    files = ", ".join(f"{kind} {most}" for kind, most in got["files"].items())
    print(
        f"concurrency  {work.concurrent} rollouts on {work.workers} workers: "
        f"{got['seconds']:.0f} s\n"
        f"             memory of a process at most: {memory}\n"
        f"             open files of a process at most: {files}\n"
        f"             event loops' timers are late by {1000 * got['late']['p99']:.0f} ms in 99 "
        f"of 100 cases ({1000 * got['late']['own_p99']:.0f} ms without waiting for a core)",
        flush=True,
    )
    return got


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parts = {"overlap": overlap, "scaling": scaling, "concurrency": concurrency}
    parser.add_argument("--only", choices=parts, action="append", help="leave the others out")
    args = parse(parser)
    works = {"overlap": OVERLAP, "scaling": SCALING, "concurrency": CONCURRENCY}
    if args.smoke:
        works = {
            "overlap": replace(
                OVERLAP, slots=16, concurrent=16, rollouts=1000, updates=1, answer_seconds=0.2
            ),
            "scaling": replace(SCALING, slots=4, concurrent=4, rollouts=8, answer_seconds=0.2),
            "concurrency": replace(
                CONCURRENCY,
                workers=2,
                servers=2,
                concurrent=32,
                rollouts=32,
                answer_seconds=0.5,
                tool_seconds=0.1,
            ),
        }
    started = time.monotonic()
    found = {name: parts[name](works[name], smoke=args.smoke) for name in args.only or parts}
    ratio = None
    if "scaling" in found:
        *_, most = found["scaling"].values()
        ratio = most["times"]
    slower = None
    if "overlap" in found:
        slower = next(got["slower"] for what, got in found["overlap"].items() if what[0] == "1")
    late = found["concurrency"]["late"]["p99"] if "concurrency" in found else None
    print_result(
        args,
        "cluster",
        ratio=ratio,
        target=TARGET,
        overlap_slower=slower,
        overlap_target=SLOWER_TARGET,
        late_p99=late,
        late_target=LATE_TARGET,
        **found,
        works={name: asdict(work) for name, work in works.items()},
        seconds=round(time.monotonic() - started),
        cores=os.cpu_count(),
        python=platform.python_version(),
    )


if __name__ == "__main__":
    main()
