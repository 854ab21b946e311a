"""The cost of `vf-rl eval` apart from the model: `python benchmarks/eval_overhead.py`.

An instant fake chat API, in a process of its own, answers everything with a tool call. Against
it, each in a fresh process:

- plain: the `openai` client with a semaphore, and nothing else: what anybody would write. It posts
  what one of our rollouts posts, and keeps nothing.
- ours: the whole command, `vf-rl eval calculator -m fake -b ...`: environment, tool, score, traces
  streamed to disk, results. Its clock starts with the first rollout.

The same command with a quarter and with four times as many rollouts of the same tasks shows what
memory does: traces are on disk, so it must not grow with them.

The last line is JSON: `ratio` is our rollouts per second over the plain loop's (ours uses the same
client, so 1 is the best there can be), from medians of the rounds; `growth_mib` is by how much the
peak memory of the largest run is above that of the smallest.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

from fake_openai import MODEL, serve
from harness import in_process, parse, print_result, receive, say, spawn
from peers import versions_of

TARGET = 0.7  # of the plain loop's rollouts per second
GROWTH_TARGET_MIB = 16.0


def plain(pipe: Connection, base_url: str, rollouts: int, args: argparse.Namespace) -> None:
    """The official client, making the same calls."""
    import openai

    import vf

    environment = vf.make("calculator")
    environment.max_turns = args.turns
    task = next(iter(environment.tasks("eval")))
    call: Any = {"calculate": {"op": "+", "a": 7, "b": 3}}
    trace = asyncio.run(vf.rollout(environment, task, vf.ScriptedModel([call] * args.turns)))
    messages = [message.to_openai() for message in trace.messages]
    ends = [place for place, each in enumerate(messages) if each["role"] == "assistant"]
    fixed: Any = {
        "model": MODEL,
        "tools": environment.episode(0).toolbox.schemas(),
        "max_tokens": 1024,
        "temperature": 1.0,
        "top_p": 1.0,
        "seed": 1,
    }

    prompts: list[Any] = [messages[:end] for end in ends]

    async def run() -> float:
        places = asyncio.Semaphore(args.concurrent)
        async with openai.AsyncOpenAI(base_url=base_url, api_key="none", timeout=None) as client:

            async def one() -> None:
                async with places:
                    for prompt in prompts:
                        answer = await client.chat.completions.create(messages=prompt, **fixed)
                        assert answer.choices[0].message.tool_calls

            await one()
            started = time.perf_counter()
            await asyncio.gather(*(one() for _ in range(rollouts)))
            return time.perf_counter() - started

    pipe.send({"seconds": asyncio.run(run()), "peak_mib": peak_mib()})


def ours(pipe: Connection, base_url: str, rollouts: int, args: argparse.Namespace) -> None:
    """The command, with its traces on disk."""
    from vf.evaluation.commands.eval import main

    with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)  # the tables; the progress is on stderr
        os.dup2(nowhere.fileno(), 2)
        argv = ["calculator", "-m", MODEL, "-b", base_url, "-n", str(args.tasks)]
        argv += ["-r", str(rollouts // args.tasks), "-c", str(args.concurrent)]
        argv += ["--max-turns", str(args.turns)]
        code = main([*argv, "-o", folder])
        results = json.loads((Path(folder) / "results.json").read_text())
        (found,) = results["results"]
        written = sum(path.stat().st_size for path in Path(folder).rglob("*.jsonl"))
    assert (code, found["scored"], found["turns"]) == (0, rollouts, rollouts * args.turns), found
    mib = written / 2**20
    pipe.send({"seconds": results["seconds"], "peak_mib": peak_mib(), "written_mib": mib})


def peak_mib() -> float:
    """The most memory that this process has had. (Linux counts the parent's in `ru_maxrss`.)"""
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--rollouts", type=int, default=800, help="a multiple of 4 x the tasks")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--concurrent", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    args = parse(parser, tasks=2, rollouts=8, turns=2, rounds=1)
    if args.rollouts % (4 * args.tasks):
        parser.error(f"--rollouts must be a multiple of {4 * args.tasks}, 4 for each task")
    mine, theirs = spawn.Pipe()
    calls, received = spawn.Value("q", 0), spawn.Value("q", 0)
    server = spawn.Process(target=serve, args=(theirs, calls, received), daemon=True)
    server.start()
    base_url = f"http://127.0.0.1:{receive(mine, server)}/v1"
    runs: dict[str, list[dict[str, float]]] = {"plain": [], "ours": []}
    for number in range(args.rounds):
        for contender in (plain, ours):
            name = contender.__name__
            say(f"round {number + 1} of {args.rounds}: {name}, {args.rollouts:,} rollouts")
            found = in_process(contender, base_url, args.rollouts, args)
            found["rollouts_per_s"] = args.rollouts / found["seconds"]
            runs[name].append(found)
            print(
                f"{name:>6}  {found['rollouts_per_s']:7.1f} rollouts/s  "
                f"{found['peak_mib']:5.0f} MiB peak",
                flush=True,
            )
    memory = {}
    for rollouts in (args.rollouts // 4, args.rollouts, args.rollouts * 4):
        say(f"memory of {rollouts:,} rollouts")
        found = in_process(ours, base_url, rollouts, args)
        memory[rollouts] = round(found["peak_mib"], 1)
        print(
            f"{rollouts:>6} rollouts: {found['written_mib']:6.1f} MiB of traces on disk, "
            f"{found['peak_mib']:5.1f} MiB peak",
            flush=True,
        )
    server.terminate()
    speed = {name: median(run["rollouts_per_s"] for run in found) for name, found in runs.items()}
    smallest, *_, largest = memory.values()
    print_result(
        args,
        "eval_overhead",
        ratio=round(speed["ours"] / speed["plain"], 2),
        target=TARGET,
        rollouts_per_s={name: round(value, 1) for name, value in speed.items()},
        peak_mib_by_rollouts=memory,
        growth_mib=round(largest - smallest, 1),
        growth_target_mib=GROWTH_TARGET_MIB,
        options=vars(args),
        versions={"python": platform.python_version()} | versions_of("aiohttp", "openai"),
    )


if __name__ == "__main__":
    main()
