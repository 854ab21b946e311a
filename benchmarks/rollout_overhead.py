"""What the library costs per model call, without a model: `python benchmarks/rollout_overhead.py`.

An instant fake OpenAI server, in a process of its own, answers every completion with a tool call.
Against it, each in a fresh process:

- raw: aiohttp posting and parsing JSON, and nothing else: the floor.
- plain: the `openai` client, and nothing else.
- ours: `vf.evaluate` of whole rollouts: environment, tool, chat template, parser, token branches,
  score. 16 rollouts of each task, as in training.

Raw and plain post what one of our rollouts posted: prompts of token ids that grow with every
turn. The server counts the calls, and the benchmark fails if the numbers differ. What each does
once (imports, connections, the tokenizer) is done before the clock starts.

Memory is shown at several lengths of a rollout, all traces kept: it must grow with the tokens.

The last line is JSON: `ratio` is our rollouts per second over the plain client's, `floor_ratio`
ours over raw aiohttp's; `cpu_ratio` and `cpu_floor_ratio` are the same in CPU time per call, which
other work on the machine disturbs less. All from medians of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import platform
import resource
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

from fake_openai import MODEL, serve
from harness import in_process, parse, print_result, receive, spawn
from peers import versions_of

TARGET = 5.0  # times the plain client's rollouts per second
FLOOR_TARGET = 0.4  # of raw aiohttp's rollouts per second
GROUP = 16  # rollouts of one task
MAX_SEQ_LEN = 100_000
LENGTHS = [8, 32, 128]

Body = dict[str, Any]
# So many rollouts, so many at once; returns how many tokens the traces hold, if there are any.
Run = Callable[[int, int], Awaitable[int]]
Contender = Callable[[str, list[Body]], AbstractAsyncContextManager[Run]]


def repeated(one: Callable[[], Awaitable[None]]) -> Run:
    async def run(rollouts: int, concurrent: int) -> int:
        places = asyncio.Semaphore(concurrent)

        async def guarded() -> None:
            async with places:
                await one()

        await asyncio.gather(*(guarded() for _ in range(rollouts)))
        return 0

    return run


@asynccontextmanager
async def raw(base_url: str, bodies: list[Body]) -> AsyncIterator[Run]:
    """Post and parse, and nothing else."""
    import aiohttp

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def one() -> None:
            for body in bodies:
                async with session.post(f"{base_url}/completions", json=body) as response:
                    answer = await response.json()
                choice = answer["choices"][0]
                assert len(choice["logprobs"]["token_logprobs"]) == len(choice["token_ids"])

        yield repeated(one)


@asynccontextmanager
async def plain(base_url: str, bodies: list[Body]) -> AsyncIterator[Run]:
    """The official client, making the same calls."""
    import openai

    # No deadline: on a busy machine connecting alone can take longer than the client waits.
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", timeout=None) as client:
        known = inspect.signature(client.completions.create).parameters.keys()
        requests = [
            {name: value for name, value in body.items() if name in known}
            | {"extra_body": {name: body[name] for name in body if name not in known}}
            for body in bodies
        ]

        async def one() -> None:
            for request in requests:
                answer = await client.completions.create(**request)
                choice: Any = answer.choices[0]
                assert len(choice.logprobs.token_logprobs) == len(choice.token_ids)

        yield repeated(one)


@asynccontextmanager
async def ours(base_url: str, bodies: list[Body]) -> AsyncIterator[Run]:
    """Whole rollouts. Every trace is kept to the end, as a training step keeps it."""
    from vf.environments.bundled.calculator import Calculator
    from vf.evaluation.evaluate import evaluate, take_tasks
    from vf.inference.model import Sampling
    from vf.inference.model_files import resolve_model
    from vf.inference.models.token_model import TokenModel
    from vf.inference.rendering.renderer import Renderer
    from vf.inference.token_client import TokenClient

    turns = len(bodies)
    environment = Calculator(num_train=1024)
    environment.max_turns = turns
    train = take_tasks(environment, "train")
    renderer = Renderer.from_pretrained(resolve_model("tiny"))
    client = TokenClient.to(base_url, MODEL)
    model = TokenModel(client, renderer, max_seq_len=MAX_SEQ_LEN)

    async def run(rollouts: int, concurrent: int) -> int:
        result = await evaluate(
            environment,
            model,
            tasks=train[: max(1, rollouts // GROUP)],
            rollouts_per_example=min(rollouts, GROUP),
            max_concurrent=concurrent,
            sampling=Sampling(max_tokens=64),
        )
        for trace in result.traces:
            assert trace.error is None, trace.error
            assert len(trace.branches) == 1
            assert [event.kind for event in trace.tool_events] == ["ok"] * turns
        return sum(len(trace.branches[0]) for trace in result.traces)

    yield run
    await client.close()


def record(pipe: Connection, base_url: str, turns: int) -> None:
    """Run one of our rollouts through a proxy, and send the bodies that it posted."""
    import aiohttp
    from aiohttp import web

    bodies: list[Body] = []

    async def run() -> None:
        async with aiohttp.ClientSession() as session:

            async def hand_on(request: web.Request) -> web.Response:
                bodies.append(await request.json())
                async with session.post(f"{base_url}/completions", json=bodies[-1]) as response:
                    return web.json_response(await response.json())

            app = web.Application(client_max_size=2**26)
            app.router.add_post("/v1/completions", hand_on)
            proxy = web.AppRunner(app, access_log=None)
            await proxy.setup()
            await web.TCPSite(proxy, "127.0.0.1", 0).start()
            async with ours(f"http://127.0.0.1:{proxy.addresses[0][1]}/v1", [{}] * turns) as play:
                await play(1, 1)
            await proxy.cleanup()

    asyncio.run(run())
    pipe.send(bodies)


def measure(
    pipe: Connection,
    contender: Contender,
    base_url: str,
    bodies: list[Body],
    rollouts: int,
    concurrent: int,
    warm_up: int,
) -> None:
    async def run() -> None:
        async with contender(base_url, bodies) as run:
            await run(warm_up, concurrent)
            warm_mib, before, started = peak_mib(), cpu_seconds(), time.perf_counter()
            tokens = await run(rollouts, concurrent)
            seconds, cpu = time.perf_counter() - started, cpu_seconds() - before
            pipe.send(
                {
                    "rollouts_per_s": rollouts / seconds,
                    "cpu_ms_per_call": 1000 * cpu / (rollouts * len(bodies)),
                    "peak_mib": peak_mib(),
                    "grown_mib": peak_mib() - warm_mib,
                    "tokens": tokens,
                }
            )

    asyncio.run(run())


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peak_mib() -> float:
    """The most memory that this process has had. (Linux counts the parent's in `ru_maxrss`.)"""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # bytes on macOS


class Bench:
    """The server, and the processes that call it one after the other."""

    def __init__(self) -> None:
        mine, theirs = spawn.Pipe()
        self.calls, self.received = spawn.Value("q", 0), spawn.Value("q", 0)
        self.server = spawn.Process(
            target=serve, args=(theirs, self.calls, self.received), daemon=True
        )
        self.server.start()
        self.base_url = f"http://127.0.0.1:{receive(mine, self.server)}/v1"
        self.recorded: dict[int, list[Body]] = {}

    def record(self, turns: int) -> list[Body]:
        """Return what one of our rollouts of so many turns posts."""
        if turns not in self.recorded:
            self.recorded[turns] = in_process(record, self.base_url, turns)
        return self.recorded[turns]

    def run(
        self,
        contender: Contender,
        bodies: list[Body],
        rollouts: int,
        concurrent: int,
        warm_up: int,
    ) -> dict[str, Any]:
        calls, received = self.calls.value, self.received.value
        found: dict[str, Any] = in_process(
            measure, contender, self.base_url, bodies, rollouts, concurrent, warm_up
        )
        found["calls"] = self.calls.value - calls
        found["sent_mib"] = (self.received.value - received) / 2**20
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rollouts", type=int, default=512, help="a multiple of 16")
    parser.add_argument("--concurrent", type=int, default=256, help="a multiple of 16")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=LENGTHS, help="turns of a rollout, for the memory"
    )
    parser.add_argument("--kept", type=int, default=128, help="rollouts, for the memory")
    args = parse(parser, rollouts=16, concurrent=16, turns=2, rounds=1, lengths=[2], kept=16)
    bench = Bench()
    results = speeds(bench, args)
    memory = [grown(bench, turns, args.kept) for turns in args.lengths]
    bench.server.terminate()
    speed = {name: found["rollouts_per_s"] for name, found in results.items()}
    cpu = {name: found["cpu_ms_per_call"] for name, found in results.items()}
    print_result(
        args,
        "rollout_overhead",
        ratio=round(speed["ours"] / speed["plain"], 2),
        target=TARGET,
        floor_ratio=round(speed["ours"] / speed["raw"], 3),
        floor_target=FLOOR_TARGET,
        cpu_ratio=round(cpu["plain"] / cpu["ours"], 2),
        cpu_floor_ratio=round(cpu["raw"] / cpu["ours"], 3),
        options=vars(args),
        results=results,
        memory=memory,
        versions={"python": platform.python_version()}
        | versions_of("aiohttp", "openai", "tokenizers", "transformers"),
    )


def speeds(bench: Bench, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return the medians of the rounds, by contender."""
    bodies = bench.record(args.turns)
    prompts = [len(body["prompt"]) for body in bodies]
    print(f"{args.rollouts} rollouts, {args.concurrent} at once; prompt tokens by turn: {prompts}")
    runs: dict[str, list[dict[str, Any]]] = {"raw": [], "plain": [], "ours": []}
    for _ in range(args.rounds):
        for contender in (raw, plain, ours):
            found = bench.run(
                contender, bodies, args.rollouts, args.concurrent, warm_up=args.concurrent
            )
            runs[contender.__name__].append(found)
            print(
                f"{contender.__name__:>6}  {found['rollouts_per_s']:8.1f} rollouts/s  "
                f"{found['cpu_ms_per_call']:6.3f} ms of CPU per call  "
                f"{found['peak_mib']:5.0f} MiB peak  "
                f"{found['calls']} calls, {found['sent_mib']:.2f} MiB sent",
                flush=True,
            )
    shown = ("rollouts_per_s", "cpu_ms_per_call", "peak_mib", "calls")
    results = {
        name: {key: round(median(run[key] for run in found), 3) for key in shown}
        for name, found in runs.items()
    }
    if len({found["calls"] for found in results.values()}) != 1:
        raise SystemExit("the contenders did not make the same number of calls")
    return results


def grown(bench: Bench, turns: int, kept: int) -> dict[str, float]:
    """Return by how much the memory grows with so many rollouts of so many turns."""
    found = bench.run(ours, bench.record(turns), kept, kept, warm_up=GROUP)
    tokens, mib = found["tokens"], round(found["grown_mib"], 1)
    per_token = round(mib * 2**20 / tokens)
    print(
        f"{turns:>4} turns: {tokens:>7} tokens in the traces, memory grew by {mib:5.1f} MiB: "
        f"{per_token} bytes per token",
        flush=True,
    )
    return {"turns": turns, "tokens": tokens, "grown_mib": mib, "bytes_per_token": per_token}


if __name__ == "__main__":
    main()
