"""How cost grows with a run's size: `python benchmarks/growth.py`.

Each axis is one size that users choose, from small to large; everything else stays the same. A
curve is the CPU time and the peak memory of one unit (a rollout, a turn, a token, ...) at each
size. If cost grows in proportion, a curve is level. CPU time is that of the process, of a repeat
that is the median; memory is by how much the first repeat's peak is above what was held before.

Models answer at once, with made-up tokens, except where the embedded engine is measured: there a
small Llama with random weights answers, so that what grows is the engine's work and not the
model's. Every point is measured in a fresh process.

The last line is JSON: `ratio` is the worst curve's least cost of a unit at a smaller size over that
at the largest size, of the curves that should be level (1 is level, below 1 cost grows faster than
size). Curves that cannot be level are marked with a star; benchmarks/results/growth.md says why.
"""

from __future__ import annotations

import argparse
import os
import platform
from multiprocessing.connection import Connection
from pathlib import Path

from growth_axes import AXES, STEEP
from growth_meter import Meter, Point
from harness import in_process, missing, parse, print_result, say
from peers import versions_of

from vf.runtime.garbage import fewer_collections

TARGET = 0.5
SIZES = {
    "rollouts": [64, 256, 1024, 4096],  # of a step
    "turns": [4, 16, 64, 256],  # of a rollout
    "context": [1024, 4096, 16_384, 65_536],  # tokens of a rollout
    "traces": [1000, 5000, 25_000, 125_000],  # lines of a file
    "tools": [1, 4, 32, 256],  # of an environment
    "environments": [1, 4, 16, 32],  # of a run
    "adapters": [1, 4, 16, 64],  # that are sampled from
}


def measure(pipe: Connection, axis: str, size: int) -> None:
    """Measure an axis at one size, in a process of its own."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    meter = Meter()
    with fewer_collections():  # as evaluations and worker processes do
        AXES[axis](meter, size)
    pipe.send(meter.points)


def steepness(seconds: list[float]) -> float:
    """Return the least cost of a unit at smaller sizes over that at the largest."""
    return min(seconds[:-1]) / seconds[-1]


def time_text(seconds: float) -> str:
    scale, unit = (1e6, "µs") if seconds < 1e-3 else (1e3, "ms") if seconds < 1 else (1, "s")
    return f"{float(f'{scale * seconds:.3g}'):g} {unit}"


def memory_text(size: float) -> str:
    scale, unit = (1, "B") if size < 1e3 else (1e3, "kB") if size < 1e6 else (1e6, "MB")
    return f"{size / scale:.0f} {unit}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--axes", nargs="+", choices=[*AXES], default=[*AXES], help="all")
    parser.add_argument("--sizes", nargs="+", type=int, help="in place of those of each axis")
    args = parse(parser)
    if not Path("/proc/self/clear_refs").exists():
        missing("Linux, which tells the peak of a process's memory")
    curves: dict[str, list[Point]] = {}
    few = 1 if args.smoke else None
    sizes = {axis: args.sizes or SIZES[axis][:few] for axis in args.axes}
    for axis in args.axes:
        for size in sizes[axis]:
            say(f"{axis}: {size:,}")
            for point in in_process(measure, axis, size):
                curves.setdefault(f"{axis}: {point.curve}", []).append(point)
    print("| | unit | " + " | ".join(["smallest", "", "", "largest"]) + " |")
    print("|---|---|---|---|---|---|")
    for axis in args.axes:
        print(f"| **{axis}** | | " + " | ".join(f"**{size:,}**" for size in sizes[axis]) + " |")
        for name, points in curves.items():
            if name.startswith(f"{axis}: "):
                cells = [f"{time_text(p.seconds)}, {memory_text(p.memory)}" for p in points]
                print(f"| {points[0].curve} | {points[0].unit} | " + " | ".join(cells) + " |")
    level = {
        name: round(steepness([point.seconds for point in points]), 3)
        for name, points in curves.items()
        if not name.endswith(STEEP) and len(points) > 1
    }
    print_result(
        args,
        "growth",
        ratio=min(level.values(), default=None),
        target=TARGET,
        curves=level,
        cores=os.cpu_count(),
        python=platform.python_version(),
        versions=versions_of("torch", "transformers", "pydantic"),
    )


if __name__ == "__main__":
    main()
