"""Run every benchmark at its smallest size: `python scripts/smoke_benchmarks.py [NAME ...]`.

A benchmark is a program in `benchmarks/` that no other file there starts. Each must accept
`--smoke` and print, last, a line of JSON with the keys below. One that lacks a part of this machine
(a container engine, a browser, a package) says what it needs, and is skipped; with
`VF_REQUIRE_ALL=1`, as in CI, that is a failure. Exit code: 1 if a benchmark failed.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks"
KEYS = {"benchmark", "ratio", "target", "smoke"}
MISSING = 77  # exit code of a benchmark that lacks a part; see benchmarks/harness.py
SHOWN = 4000  # characters of a failed benchmark's output


def benchmarks(folder: Path = FOLDER) -> dict[str, Path]:
    """Return the benchmarks by name.

    A program has a main guard. One whose file name is a string of its own in another file is
    started from there: a server, say, or a worker.
    """
    trees = {path: ast.parse(path.read_text()) for path in sorted(folder.glob("*.py"))}
    started = {text for tree in trees.values() for text in _strings(tree)}
    return {
        path.stem: path
        for path, tree in trees.items()
        if path.name not in started and any(map(_is_guard, tree.body))
    }


def _strings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _is_guard(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"


def fault(name: str, code: int, output: str) -> str | None:
    """Return what is wrong with how a benchmark ended; None if nothing is."""
    if code:
        return f"it ended with exit code {code}"
    lines = output.splitlines()
    try:
        last = json.loads(lines[-1] if lines else "")
    except ValueError:
        return "its last line is not JSON"
    if lacking := KEYS - (last.keys() if isinstance(last, dict) else set()):
        return f"its last line lacks {', '.join(sorted(lacking))}"
    if (last["benchmark"], last["smoke"]) != (name, True):
        return f'its last line must have "benchmark": "{name}" and "smoke": true'
    return None


def run(name: str, path: Path, timeout: float) -> bool:
    """Run a benchmark, print a line about it, and return whether it passed."""
    began, label = time.monotonic(), f"{name:<18}"
    # What it writes where it is started stays out of the clone.
    with tempfile.TemporaryDirectory(prefix="smoke-") as folder:
        try:
            done = subprocess.run(
                [sys.executable, path, "--smoke"],
                cwd=folder,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                capture_output=True,
                text=True,
                timeout=timeout,
            )
        except subprocess.TimeoutExpired as error:
            print(f"{label} FAILED   it ran for {timeout:.0f} s")
            for part in (error.stdout, error.stderr):
                print((part or b"").decode(errors="replace")[-SHOWN:])
            return False
    spent = f"{time.monotonic() - began:4.0f} s"
    said = done.stderr.strip().splitlines()
    if done.returncode == MISSING and not os.environ.get("VF_REQUIRE_ALL"):
        print(f"{label} skipped  {said[-1] if said else ''}", flush=True)
        return True
    if wrong := fault(name, done.returncode, done.stdout):
        print(f"{label} FAILED   {spent}  {wrong}")
        print(done.stdout[-SHOWN:], done.stderr[-SHOWN:], sep="\n")
        return False
    notes = [line for line in said if "is not installed" in line]
    print(f"{label} ok       {spent}", *notes, sep="  ", flush=True)
    return True


def main() -> int:
    """Run those that were asked for."""
    found = benchmarks()
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="by default all")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for each (900)")
    parser.add_argument("--list", action="store_true", help="only print the names")
    args = parser.parse_args()
    if unknown := [name for name in args.names if name not in found]:
        parser.error(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(found)}")
    if args.list:
        print(*found, sep="\n")
        return 0
    began = time.monotonic()
    names = args.names or list(found)
    # Nothing is measured, so one runs on each core.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        passed = list(pool.map(lambda name: run(name, found[name], args.timeout), names))
    failed = passed.count(False)
    print(f"{len(names)} benchmarks, {failed} failed, {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
