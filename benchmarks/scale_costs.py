"""What one rollout costs the trainer's process and a worker: `python benchmarks/scale_costs.py`.

With worker processes and several servers, the trainer's process still does three things for each
rollout: it gives the leases of its requests, takes its trace in, and makes tensors of it for the
ranks. CPU time for a made-up rollout of four turns, each with 1,000 sampled tokens and 500 of a
prompt or an observation:

- *leases*: of calls from another process, 256 at a time.
- *take in*, *write*: to unpickle a trace with its JSON, and to append the line to a file.
- *tensors*: to make micro-batches of it, and to pickle them for a rank.
- *worker*: four requests to a server that answers at once, with rendering and parsing, and the
  trace on its way: as JSON, and pickled.

docs/scale.md computes from these where a run of 64 nodes meets its limits. The last line is JSON:
`ratio` is how many of that page's rollouts a second (480) fit into one core of the trainer's
process.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import pickle
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median

from fake_openai import as_completion, http_answer
from harness import parse, print_result, say

from vf.inference.model import Conversation, Sampling
from vf.inference.model_files import resolve_model
from vf.inference.models.token_model import TokenModel
from vf.inference.rendering.renderer import Renderer
from vf.inference.token_client import TokenClient
from vf.runtime.command import quiet_transformers
from vf.runtime.meeting import connect, listen
from vf.traces.messages import Message
from vf.traces.store import TraceStore
from vf.traces.task import Task
from vf.traces.trace import Branch, Score, Trace

TURNS, SAMPLED, OBSERVED, PROMPT = 4, 1000, 500, 500
WIDTH = 256  # calls under way
TARGET = 480  # rollouts a second: docs/scale.md


def made_up(seed: int) -> Trace:
    """Return a rollout with random tokens, as long as those of docs/scale.md."""
    rng = random.Random(seed)

    def tokens(count: int) -> list[int]:
        return [rng.randrange(150_000) for _ in range(count)]

    def text(count: int) -> str:
        return " ".join(f"{rng.randrange(1000):03}" for _ in range(count))  # 4 characters each

    branch = Branch()
    branch.add_context(tokens(PROMPT), 0)
    messages = [Message(role="user", content=text(PROMPT))]
    for turn in range(TURNS):
        logprobs = [-rng.expovariate(2.0) for _ in range(SAMPLED)]
        branch.add_sampled(tokens(SAMPLED), logprobs, [seed % 7] * SAMPLED, turn)
        messages.append(Message(role="assistant", content=text(SAMPLED)))
        if turn < TURNS - 1:
            branch.add_context(tokens(OBSERVED), turn + 1)
            messages.append(Message(role="user", content=text(OBSERVED)))
    reward = rng.random()
    score = Score(reward, reward)
    return Trace("made-up", Task("1", "?"), seed, messages=messages, branches=[branch], score=score)


def seconds(body: Callable[[], object], rounds: int) -> float:
    """Return the median CPU time of a body."""
    found = []
    for _ in range(rounds):
        begun = time.process_time()
        body()
        found.append(time.process_time() - begun)
    return median(found)


async def leases(calls: int) -> float:
    """Return how many calls of another process this one answers in a second of its CPU time."""

    async def take(number: int, conversation: str) -> tuple[int, str]:
        return number, "http://10.0.0.1:8000/v1"

    async with listen() as listener:
        invitation = listener.invite("the caller")
        environ = {**os.environ, **invitation.environ}
        command = [sys.executable, __file__, "--call", str(calls)]
        caller = await asyncio.create_subprocess_exec(*command, env=environ)
        peer = await invitation.accepted({"take": take}, 60)
        before = time.process_time()
        await peer.serve()
        spent = time.process_time() - before
        await caller.wait()
    return calls / spent


async def call(calls: int) -> None:
    """Call as a worker does."""
    peer = await connect({})
    serving = asyncio.create_task(peer.serve())
    left = iter(range(calls))

    async def lane() -> None:
        for number in left:
            await peer.call("take", number, "conversation-0123456789abcdef")

    await asyncio.gather(*(lane() for _ in range(WIDTH)))
    await peer.close()
    await serving


async def answers() -> None:
    """Serve one answer of 1,000 tokens to whatever is asked; print the port first."""
    quiet_transformers()
    renderer = Renderer.from_pretrained(resolve_model("tiny"))
    encode = partial(renderer.tokenizer.encode, add_special_tokens=False)
    ids = [*encode("an answer, " * SAMPLED)[: SAMPLED - 1], *encode("<|im_end|>")]
    reply = http_answer(as_completion(0, renderer.decode(ids), ids))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                size = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
                await reader.readexactly(int(size or 0))
                writer.write(reply)

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def requests(rounds: int) -> float:
    """Return the seconds of CPU time that the requests of one rollout take in a worker."""
    quiet_transformers()
    renderer = Renderer.from_pretrained(resolve_model("tiny"))
    words = "an observation " * OBSERVED
    count = len(renderer.tokenizer.encode(words, add_special_tokens=False))
    said = words[: len(words) * OBSERVED // count]
    command = [sys.executable, __file__, "--answer"]
    server = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert server.stdout is not None
    port = int(await server.stdout.readline())
    client = TokenClient.to(f"http://127.0.0.1:{port}/v1", "fake")
    model = TokenModel(client, renderer, max_seq_len=100_000)

    async def talk() -> None:
        conversation = Conversation([Message("user", said)], [])
        for _ in range(TURNS):
            reply = await model.respond(conversation, Sampling())
            conversation.messages += [reply.message, Message("user", said)]
            conversation.turn += 1

    await talk()
    before = time.process_time()
    for _ in range(rounds // 8):
        await asyncio.gather(*(talk() for _ in range(8)))
    spent = time.process_time() - before
    await client.close()
    server.terminate()
    await server.wait()
    return spent / (rounds // 8 * 8)


def main() -> None:
    """Measure, and print a table and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=200, help="rollouts (default: 200)")
    parser.add_argument("--calls", type=int, default=40_000, help="leases (default: 40,000)")
    parser.add_argument("--call", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    args = parse(parser, rounds=8, calls=500)
    if args.answer:
        asyncio.run(answers())
        return
    if args.call is not None:
        asyncio.run(call(args.call))
        return
    import torch

    from vf.trainer.learning.batches.batch import Sample, micro_batches

    torch.set_num_threads(1)
    say("traces and tensors")
    trace = made_up(1)
    line = trace.to_json()
    frame = pickle.dumps((trace, line))
    encode = seconds(lambda: pickle.dumps((trace, trace.to_json())), args.rounds)
    take_in = seconds(lambda: pickle.loads(frame), args.rounds)
    with tempfile.TemporaryDirectory() as folder, TraceStore(Path(folder) / "traces") as store:
        write = seconds(lambda: store.append(trace, line), args.rounds)
    tokens = len(trace.branches[0])
    sample = Sample(trace.branches[0], 1.0)
    build = seconds(lambda: micro_batches([sample], tokens), args.rounds)
    batch = pickle.dumps(micro_batches([sample], tokens))
    send = seconds(lambda: pickle.dumps(micro_batches([sample], tokens)), args.rounds)
    say("leases")
    rate = asyncio.run(leases(args.calls))
    say("requests of a worker")
    asked = asyncio.run(requests(args.rounds))
    lease = 2 * TURNS / rate  # one is taken and given back for each request
    whole = lease + take_in + write + send
    print(f"Python {platform.python_version()}, {os.cpu_count()} CPU cores")
    print(f"a rollout of {tokens:,} tokens, {TURNS} turns; CPU time of the trainer's process:")
    print(f"  leases      {1e3 * lease:6.2f} ms, at {rate:,.0f} calls a second")
    print(f"  take in     {1e3 * take_in:6.2f} ms, {len(frame):,} bytes from the worker")
    print(f"  write       {1e3 * write:6.2f} ms, {len(line):,} bytes of JSON")
    print(f"  tensors     {1e3 * send:6.2f} ms ({1e3 * build:.2f} to make), {len(batch):,} bytes")
    print(f"  in all      {1e3 * whole:6.2f} ms")
    print("and of a worker's:")
    print(f"  requests    {1e3 * asked:6.2f} ms")
    print(f"  encode      {1e3 * encode:6.2f} ms")
    print_result(
        args,
        "scale_costs",
        ratio=round(1 / whole / TARGET, 2),
        target=1.0,
        lease_ms=round(1e3 * lease, 3),
        take_in_ms=round(1e3 * take_in, 3),
        write_ms=round(1e3 * write, 3),
        tensors_ms=round(1e3 * send, 3),
        worker_ms=round(1e3 * (asked + encode), 3),
        frame_bytes=len(frame),
        line_bytes=len(line),
        batch_bytes=len(batch),
    )


if __name__ == "__main__":
    main()
