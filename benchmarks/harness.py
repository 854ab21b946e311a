"""What all benchmarks share: ``--smoke``, progress, and the JSON line at the end.

``--smoke`` runs all of a benchmark at the smallest size, to check that it works; its figures mean
nothing, and its last line says so. ``scripts/smoke_benchmarks.py`` runs every benchmark with it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NoReturn

MISSING = 77  # exit code: this machine lacks a part, as in automake
SMOKE = "run everything at the smallest size, to check that it works; the figures mean nothing"
STARTED = time.monotonic()

spawn = multiprocessing.get_context("spawn")


def parse(parser: argparse.ArgumentParser, **smallest: object) -> argparse.Namespace:
    """Add ``--smoke`` to a benchmark's options, and parse the command line.

    Args:
        parser: Has the benchmark's other options.
        **smallest: Values of options for ``--smoke``. Options on the command line win.

    Raises:
        TypeError: A name in ``smallest`` is no option.
    """
    if unknown := smallest.keys() - vars(parser.parse_args([])).keys():
        raise TypeError(f"{parser.prog} has no option for {sorted(unknown)}")
    parser.add_argument("--smoke", action="store_true", help=SMOKE)
    if "--smoke" in sys.argv[1:]:
        parser.set_defaults(**smallest)
    return parser.parse_args()


def say(what: str) -> None:
    """Print what is being done, and the seconds since the start."""
    print(f"[{time.monotonic() - STARTED:4.0f} s] {what}", flush=True)


def print_result(
    args: argparse.Namespace, benchmark: str, *, ratio: float | None, target: float, **more: Any
) -> None:
    """Print a benchmark's last line.

    Args:
        args: What :func:`parse` returned.
        benchmark: The name of its file.
        ratio: Above 1 is better; None if its contenders did not run.
        target: What the ratio should be.
        **more: Further figures.
    """
    head = {"benchmark": benchmark, "smoke": args.smoke, "ratio": ratio, "target": target}
    print(json.dumps(head | more))


def missing(what: str) -> NoReturn:
    """End a benchmark that cannot run here, with a line that says what it needs."""
    print(f"{Path(sys.argv[0]).stem} needs {what}", file=sys.stderr)
    raise SystemExit(MISSING)


def need_containers() -> None:
    """End a benchmark that needs containers where none can be made."""
    from vf.sandbox.container.docker_engine import EngineProblem
    from vf.sandbox.container.doctor import check_engine
    from vf.sandbox.container.hardening import Profile

    try:
        check_engine(Profile())
    except EngineProblem as problem:
        missing(f"a container engine with the sandbox's image: {problem}")


def receive(pipe: Connection, process: BaseProcess) -> Any:  # noqa: ANN401
    """Return what a process of the benchmark sends; end the benchmark if it dies instead."""
    while not pipe.poll(0.5):
        if not process.is_alive() and not pipe.poll(0):
            raise SystemExit("a process of the benchmark died; its traceback is above")
    return pipe.recv()


def in_process(target: Callable[..., None], *args: object) -> Any:  # noqa: ANN401
    """Call a function in a fresh process, with one end of a pipe before its other arguments.

    Returns:
        What it sends through the pipe.
    """
    mine, theirs = spawn.Pipe()
    process = spawn.Process(target=target, args=(theirs, *args))  # may have children: no daemon
    process.start()
    try:
        found = receive(mine, process)
        process.join()
        return found
    finally:
        process.terminate()
