"""What the library costs per model call, without a model: `python benchmarks/rollout_overhead.py`.

An instant fake OpenAI server, in a process of its own, answers every completion with the same
tool call. Against it, each in a process of its own: raw aiohttp posting and parsing JSON (the
floor), the plain `openai` client making the same calls, and our rollouts: environment, tool,
chat template, parser, branches and score included.

The last line is JSON: `ratio` is our rollouts per second over the plain client's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import resource
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection

import aiohttp
import openai

from vf.environments.bundled.calculator import Calculator
from vf.environments.evaluate import take_tasks
from vf.environments.runner import rollout
from vf.inference.model import Sampling
from vf.inference.renderer import Renderer
from vf.inference.tiny_path import resolve_model
from vf.inference.token_model import TokenModel
from vf.inference.wire import JsonClient
from vf.traces.messages import Message

TURNS = 4
CALL = (
    '<tool_call>{"name": "calculate", "arguments": {"op": "+", "a": 1, "b": 2}}</tool_call>'
    "<|im_end|>"
)
TARGET = 5.0  # times the plain client's rollouts per second

Work = Callable[[str, int, int], Awaitable[None]]


def renderer() -> Renderer:
    return Renderer.from_pretrained(resolve_model("tiny"))


def serve(pipe: Connection) -> None:
    """Answer every POST with one completion, as fast as Python can."""
    ids = renderer().tokenizer.encode(CALL, add_special_tokens=False)
    choice = {
        "index": 0,
        "text": CALL,
        "token_ids": ids,
        "finish_reason": "stop",
        "logprobs": {"token_logprobs": [-0.5] * len(ids), "tokens": ["x"] * len(ids)},
    }
    usage = {"prompt_tokens": 1, "completion_tokens": len(ids), "total_tokens": 1 + len(ids)}
    answer = {"id": "x", "object": "text_completion", "created": 0, "model": "fake"}
    body = json.dumps({**answer, "choices": [choice], "usage": usage}).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    response = head % len(body) + body

    class Instant(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            self.transport, self.buffer = transport, b""

        def data_received(self, data: bytes) -> None:
            self.buffer += data
            while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
                lowered = self.buffer[:end].lower()
                start = lowered.index(b"content-length:") + len(b"content-length:")
                total = end + 4 + int(lowered[start:].split(b"\r\n")[0])
                if len(self.buffer) < total:
                    return
                self.buffer = self.buffer[total:]
                self.transport.write(response)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Instant, "127.0.0.1", 0, backlog=1024)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


async def raw(base_url: str, rollouts: int, concurrent: int) -> None:
    """Post and parse, and nothing else."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def one(prompt: list[int]) -> None:
            for _ in range(TURNS):
                body = json.dumps({"model": "fake", "prompt": prompt, "max_tokens": 64})
                async with session.post(f"{base_url}/completions", data=body) as response:
                    json.loads(await response.text())

        await many(one, rollouts, concurrent)


async def plain(base_url: str, rollouts: int, concurrent: int) -> None:
    """The official client, making the same calls."""
    client = openai.AsyncOpenAI(base_url=base_url, api_key="none")

    async def one(prompt: list[int]) -> None:
        for _ in range(TURNS):
            await client.completions.create(model="fake", prompt=prompt, max_tokens=64)

    await many(one, rollouts, concurrent)
    await client.close()


async def many(one: Callable[[list[int]], Awaitable[None]], rollouts: int, concurrent: int) -> None:
    environment = Calculator(num_train=1)
    task = take_tasks(environment, "train")[0]
    tools = environment.episode(0).toolbox.schemas()
    prompt = renderer().prompt([Message("user", str(task.prompt))], tools)
    places = asyncio.Semaphore(concurrent)

    async def guarded() -> None:
        async with places:
            await one(prompt)

    await asyncio.gather(*(guarded() for _ in range(rollouts)))


async def ours(base_url: str, rollouts: int, concurrent: int) -> None:
    """Whole rollouts: environment, tool, chat template, parser, branches, score."""
    environment = Calculator(num_train=1)
    environment.max_turns = TURNS
    task = take_tasks(environment, "train")[0]
    client = JsonClient(base_url)
    model = TokenModel(client, "fake", renderer(), max_seq_len=4096)
    places = asyncio.Semaphore(concurrent)

    async def one(seed: int) -> None:
        async with places:
            trace = await rollout(
                environment, task, model, sampling=Sampling(max_tokens=64), seed=seed
            )
        assert trace.error is None, trace.error
        assert len(trace.turns) == TURNS

    await asyncio.gather(*(one(seed) for seed in range(rollouts)))
    await client.close()


def measure(pipe: Connection, work: Work, base_url: str, rollouts: int, concurrent: int) -> None:
    asyncio.run(work(base_url, 16, 16))  # warm up: imports, connections, compiled templates
    before, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    asyncio.run(work(base_url, rollouts, concurrent))
    seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    pipe.send(
        {
            "rollouts_per_s": rollouts / seconds,
            "cpu_ms_per_call": 1000 * cpu / (rollouts * TURNS),
            "peak_mib": after.ru_maxrss / 1024,
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rollouts", type=int, default=512)
    parser.add_argument("--concurrent", type=int, default=256)
    args = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    mine, theirs = spawn.Pipe()
    server = spawn.Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    base_url = f"http://127.0.0.1:{mine.recv()}/v1"
    results = {}
    for work in (raw, plain, ours):
        process = spawn.Process(
            target=measure, args=(theirs, work, base_url, args.rollouts, args.concurrent)
        )
        process.start()
        results[work.__name__] = found = mine.recv()
        process.join()
        print(
            f"{work.__name__:>6}  {found['rollouts_per_s']:8.1f} rollouts/s  "
            f"{found['cpu_ms_per_call']:6.2f} ms of CPU per call  {found['peak_mib']:6.0f} MiB peak"
        )
    server.terminate()
    speed = {name: found["rollouts_per_s"] for name, found in results.items()}
    print(
        json.dumps(
            {
                "benchmark": "rollout_overhead",
                "ratio": round(speed["ours"] / speed["plain"], 2),
                "target": TARGET,
                "ratio_to_raw": round(speed["ours"] / speed["raw"], 3),
                "rollouts": args.rollouts,
                "concurrent": args.concurrent,
                "turns": TURNS,
                "results": results,
            }
        )
    )


if __name__ == "__main__":
    main()
