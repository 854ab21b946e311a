"""Run the reference solution, and doing nothing, on task folders.

    python scripts/check_task_folders.py                     # the fifty of the tests
    python scripts/check_task_folders.py FOLDER --json out   # others; verdicts into a file

A line for each task. Exit code: 1 unless every solution earns 1 and doing nothing earns 0. Needs a
container engine with the image that `vf-rl sandbox build` makes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import vf
from vf.environments.runner import rollout
from vf.evaluation.evaluate import evaluate
from vf.inference.model import Model
from vf.inference.models.scripted_model import Line, ScriptedModel

ROOT = Path(__file__).resolve().parents[1]
SERVER = "VF_TEST_SERVER"
WANTED = {"oracle": 1.0, "nop": 0.0}
Verdicts = dict[str, dict[str, float | None]]


def main() -> int:
    """Parse the command line, run, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "folder", nargs="?", type=Path, help="task folders; default: the tests' own"
    )
    parser.add_argument("--only", action="append", default=[], help="pattern of ids; repeatable")
    parser.add_argument("--json", type=Path, help="write the rewards to this file")
    parser.add_argument("--at-once", type=int, default=4, help="episodes at once; default 4")
    args = parser.parse_args()
    with serving() as host, tempfile.TemporaryDirectory() as made:
        folder = args.folder
        if folder is None:
            sys.path.insert(0, str(ROOT))
            from tests.bridges.harbor.conventions.make import make

            folder = make(Path(made), host=host)
        verdicts = asyncio.run(check(folder, args.only, args.at_once))
    if args.json:
        args.json.write_text(json.dumps(verdicts, indent=2) + "\n")
    good = sum(each == WANTED for each in verdicts.values())
    print(f"{good} of {len(verdicts)} tasks: the solution earns 1, doing nothing 0")
    return int(good < len(verdicts))


async def check(folder: Path, only: list[str], at_once: int) -> Verdicts:
    """Return each task's rewards, None where the machinery failed."""
    environment = vf.make(
        "harbor", tasks=str(folder), network="task", held_out=0, only=only, host_env=[SERVER]
    )
    found = {agent: await rewards(environment, agent, at_once) for agent in WANTED}
    return {
        task: {agent: found[agent][task] for agent in WANTED} for task in sorted(found["oracle"])
    }


async def rewards(environment: vf.Environment, agent: str, at_once: int) -> dict[str, float | None]:
    """Return what an agent earns in each task, and print it."""
    found: dict[str, float | None] = {}

    def script(task: vf.Task) -> list[Line]:
        lines = environment.oracle(task)
        if lines is None or callable(lines):
            raise SystemExit(f"{task.id} has no solution")
        return list(lines) if agent == "oracle" else ["I did nothing."] * len(list(lines))

    async def run(env: vf.Environment, task: vf.Task, _: Model, **settings: Any) -> vf.Trace:
        return await rollout(env, task, ScriptedModel(script(task)), **settings)

    def tell(trace: vf.Trace) -> None:
        found[trace.task.id] = trace.reward
        print(f"{trace.task.id:35} {agent:6} {trace.reward}", flush=True)
        if trace.reward != WANTED[agent]:
            why = trace.error.message if trace.error else json.dumps(trace.info.get("harbor"))
            print(f"    {why}")

    await evaluate(environment, ScriptedModel([]), max_concurrent=at_once, run=run, on_trace=tell)
    return found


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """Serve a word over HTTP, say where in the environment, and yield this machine's address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"from-the-server\n")

        def log_message(self, *_: object) -> None:
            pass

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect(("192.0.2.1", 9))  # sends nothing, but chooses an address
        host = asking.getsockname()[0]
    with ThreadingHTTPServer((host, 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        os.environ[SERVER] = f"{host}:{server.server_port}"
        yield host
        server.shutdown()


if __name__ == "__main__":
    raise SystemExit(main())
