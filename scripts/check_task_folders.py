"""Run the reference solution, and doing nothing, on task folders.

    python scripts/check_task_folders.py                     # the fifty of the tests
    python scripts/check_task_folders.py FOLDER --json out   # others; rewards into a file
    python scripts/check_task_folders.py bridges/harbor/bundled --hackers

Prints a line for each episode. Exit code: 1 unless every solution earns 1 and all else earns 0.
Needs a container engine with the image that `vf-rl sandbox build` makes.
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
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import vf
from vf.bridges.harbor.make import harbor
from vf.environments.runner import rollout
from vf.evaluation.evaluate import evaluate
from vf.evaluation.scripts import oracle_of
from vf.evaluation.validation.agents import Agent, AgentModel, Notes
from vf.evaluation.validation.terminal_hackers import terminal_hackers
from vf.evaluation.validation.trap import set_trap
from vf.inference.model import Model
from vf.inference.models.scripted_model import Line, ScriptedModel

ROOT = Path(__file__).resolve().parents[1]
SERVER = "VF_TEST_SERVER"
ORACLE, NOP = "oracle", "nop"
Rewards = dict[str, dict[str, float | None]]


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
    parser.add_argument("--hackers", action="store_true", help="let the hackers try, too")
    args = parser.parse_args()
    with serving() as host, tempfile.TemporaryDirectory() as made:
        folder = args.folder
        if folder is None:
            sys.path.insert(0, str(ROOT))
            from tests.bridges.harbor.conventions.make import make

            folder = make(Path(made), host=host)
        environment = harbor(
            str(folder), network="task", held_out=0, only=args.only, host_env=[SERVER]
        )
        rewards = asyncio.run(check(environment, args.hackers, args.at_once))
    if args.json:
        args.json.write_text(json.dumps(rewards, indent=2, sort_keys=True) + "\n")
    good = sum(
        all(reward == float(agent == ORACLE) for agent, reward in task.items())
        for task in rewards.values()
    )
    print(f"{good} of {len(rewards)} tasks: the solution earns 1, all else 0")
    return int(good < len(rewards))


async def check(environment: vf.Environment, hackers: bool, at_once: int) -> Rewards:
    """Return what each agent earns in each task, None where the machinery failed."""
    rewards: Rewards = {}
    with set_trap() as trap:
        agents: dict[str, Callable[[vf.Task], Model]] = {
            ORACLE: lambda task: ScriptedModel(solution(environment, task)),
            NOP: lambda task: ScriptedModel(["I did nothing."] * len(solution(environment, task))),
        }
        for hacker in terminal_hackers(trap) if hackers else ():
            agents[hacker.name] = model_of(hacker, environment.max_turns)
        for name, model in agents.items():
            await act(environment, name, model, at_once, rewards)
    return rewards


async def act(
    environment: vf.Environment,
    agent: str,
    model: Callable[[vf.Task], Model],
    at_once: int,
    rewards: Rewards,
) -> None:
    """Let an agent act once in each task, and print what it earns."""

    async def run(env: vf.Environment, task: vf.Task, _: Model, **settings: Any) -> vf.Trace:
        return await rollout(env, task, model(task), **settings)

    def tell(trace: vf.Trace) -> None:
        rewards.setdefault(trace.task.id, {})[agent] = trace.reward
        print(f"{trace.task.id:35} {agent:16} {trace.reward}", flush=True)
        if trace.reward != float(agent == ORACLE):
            why = trace.error.message if trace.error else json.dumps(trace.info.get("harbor"))
            print(f"    {why}")

    await evaluate(environment, ScriptedModel([]), max_concurrent=at_once, run=run, on_trace=tell)


def solution(environment: vf.Environment, task: vf.Task) -> list[Line]:
    """Return what has the reference solution run, a line for each step."""
    lines = oracle_of(environment, task)
    if lines is None or callable(lines):
        raise SystemExit(f"{task.id} has no solution")
    return list(lines)


def model_of(agent: Agent, max_turns: int) -> Callable[[vf.Task], Model]:
    """Return a scripted agent as a model, for each task."""
    notes = Notes({}, max_turns=max_turns)
    return lambda task: AgentModel(agent, task, notes)


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
