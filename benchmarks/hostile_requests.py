"""How long honest requests wait beside 500 hostile ones: `python benchmarks/hostile_requests.py`.

Two doors, each in a process of its own: `vf-rl serve tiny`, and the endpoint through which an
agent reaches its policy. There, the hostile requests come with the key of one rollout, and the
honest ones are another rollout's; its model is an instant fake, so that what is measured is the
endpoint.

For each kind of hostile request, a further process sends 500 of them at once, on as many
connections, and waits for the answers; those that never end are held for 10 seconds. Meanwhile an
honest client asks again and again. Before each kind it asks alone for 3 seconds: the control. And
the first kind is 500 ordinary requests.

On a busy machine a wait is also as long as others hold the cores. So for each wait the CPU time is
noted that the server used meanwhile, in all of its threads: what it would be at most if the server
had a core for itself.

Prints a table in Markdown, with the load average of the last minute. The last line is JSON: `ratio`
is 1 s over the longest wait at both doors, in the server's CPU time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from endpoint import token_model
from fake_openai import serve as fake_engine
from harness import parse, print_result, receive, say, spawn
from hostile_bodies import KINDS, Door, Then

TARGET = 1.0  # seconds
HELD = 10.0  # seconds for which connections are held whose requests do not end
LONGEST = 120.0  # seconds for one kind
CONTROL = 3.0  # seconds
PAUSE = 0.05  # seconds between honest requests
CHUNK = b"10000\r\n" + b" " * 0x10000 + b"\r\n"


@dataclass(frozen=True)
class Row:
    """What one kind cost."""

    door: str
    kind: str
    ends: str
    seconds: float
    asked: int
    median: float
    longest: float
    cpu: float
    control: float
    load: float

    def line(self) -> str:
        """Return it as a row of the table."""
        return (
            f"| {self.door} | {self.kind} | {self.ends} | {self.seconds:.1f} | {self.asked} | "
            f"{self.median:.2f} | {self.longest:.2f} | **{self.cpu:.2f}** | {self.control:.2f} | "
            f"{self.load:.0f} |"
        )


def attackers(pipe: Connection) -> None:
    """Send what comes through the pipe; send back how the requests ended."""

    async def one(address: tuple[str, int], request: bytes, then: Then) -> str:
        try:
            reader, writer = await asyncio.open_connection(*address)
        except OSError as error:
            return type(error).__name__
        try:
            writer.write(request)
            await writer.drain()
            if then == "leave":
                return "left"
            if then == "hold":
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(HELD):
                        return (await reader.readline()).decode("latin-1")[9:12] or "closed"
                return "held"
            answer = asyncio.ensure_future(reader.readline())
            try:
                while then == "continue" and not answer.done():
                    writer.write(CHUNK)
                    await writer.drain()
                    await asyncio.sleep(0)
                return (await answer).decode("latin-1")[9:12] or "closed"
            finally:
                answer.cancel()
        except OSError:
            return "closed"
        finally:
            writer.close()

    async def every(
        address: tuple[str, int], request: bytes, then: Then, count: int
    ) -> Counter[str]:
        async with asyncio.timeout(LONGEST):
            return Counter(
                await asyncio.gather(*(one(address, request, then) for _ in range(count)))
            )

    pipe.send("ready")
    while (work := pipe.recv()) is not None:
        try:
            pipe.send(asyncio.run(every(*work)))
        except TimeoutError:
            pipe.send(Counter({"unanswered": work[-1]}))


def used(pid: int) -> float:
    """Return the CPU time that a process has used, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Honest:
    """A client that asks again and again, each time on a connection of its own."""

    def __init__(self, door: Door) -> None:
        self.door = door
        self.waits: list[tuple[float, float]] = []  # seconds, and those of the server's CPU time
        self.request = door.ask("Tea?").replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)

    async def ask(self) -> None:
        """Ask once, and note how long the answer took."""
        began, cpu = time.perf_counter(), used(self.door.pid)
        reader, writer = await asyncio.open_connection(self.door.host, self.door.port)
        writer.write(self.request)
        answer = await reader.read()
        writer.close()
        self.waits.append((time.perf_counter() - began, used(self.door.pid) - cpu))
        if b" 200 " not in answer[:20]:
            raise SystemExit(f"an honest request was refused: {answer[:500]!r}")

    async def ask_until(self, over: asyncio.Event) -> list[tuple[float, float]]:
        """Ask until an event is set, and return how long the answers took: the last one, too."""
        self.waits = []
        while not over.is_set():
            await self.ask()
            await asyncio.sleep(PAUSE)
        return self.waits

    async def ask_for(self, seconds: float) -> list[tuple[float, float]]:
        """Ask for this many seconds, and return how long the answers took."""
        over = asyncio.Event()
        asyncio.get_running_loop().call_later(seconds, over.set)
        return await self.ask_until(over)


async def measure(
    name: str, honest: Honest, hostile: Door, kind: str, count: int, pipe: Connection
) -> Row:
    """Ask alone, then beside hostile requests of a kind."""
    then, make = KINDS[kind]
    work = ((hostile.host, hostile.port), make(hostile), then, count)
    control = max(wait for wait, _ in await honest.ask_for(CONTROL))
    over = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(honest.ask_until(over))
        began = time.perf_counter()
        await asyncio.to_thread(pipe.send, work)
        ends: Counter[str] = await asyncio.to_thread(pipe.recv)
        seconds = time.perf_counter() - began
        over.set()
    said = ", ".join(f"{end} × {number}" for end, number in sorted(ends.items()))
    waits = [wait for wait, _ in asking.result()]
    cpu = max(cpu for _, cpu in asking.result())
    load = os.getloadavg()[0]
    return Row(name, kind, said, seconds, len(waits), median(waits), max(waits), cpu, control, load)


@asynccontextmanager
async def served() -> AsyncIterator[tuple[Door, Door]]:
    """Run `vf-rl serve tiny`, and yield its door, for both."""
    import aiohttp

    from vf.inference.request_limits import most_bytes

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["-m", "vf.trainer.commands.main", "serve", "tiny", "--port", str(port)]
    quiet = asyncio.subprocess.DEVNULL
    server = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=quiet)
    try:
        context = None
        async with aiohttp.ClientSession() as session:
            while context is None:
                if server.returncode is not None:
                    raise SystemExit("vf-rl serve ended before it listened")
                await asyncio.sleep(0.5)
                with contextlib.suppress(aiohttp.ClientConnectionError):
                    async with session.get(f"http://127.0.0.1:{port}/v1/models") as answer:
                        context = (await answer.json())["data"][0]["max_model_len"]
        door = Door("127.0.0.1", port, "/v1", "none", "tiny", most_bytes(context), server.pid)
        yield door, door
    finally:
        with contextlib.suppress(ProcessLookupError):
            server.terminate()
        await server.wait()


def endpoint(pipe: Connection, engine: str) -> None:
    """Open the endpoints of two rollouts, send their URLs and keys, and wait for the end."""
    import vf
    from vf.inference.endpoint.session import open_session
    from vf.inference.model import Sampling
    from vf.traces.trace import Trace

    async def run() -> None:
        async with token_model(engine) as model, contextlib.AsyncExitStack() as stack:
            addresses = []
            for name in ("honest", "hostile"):
                trace = Trace("agent", vf.Task(name, ""), seed=0)
                opened = open_session(
                    model, trace=trace, sampling=Sampling(), seed=0, max_turns=10**9
                )
                session = await stack.enter_async_context(opened)
                addresses.append((session.endpoint.url, session.endpoint.key))
            pipe.send(addresses)
            await asyncio.to_thread(pipe.recv)

    asyncio.run(run())


@asynccontextmanager
async def endpoints() -> AsyncIterator[tuple[Door, Door]]:
    """Yield the doors of an honest rollout and a hostile one."""
    from vf.inference.request_limits import MOST_BYTES

    mine, theirs = spawn.Pipe()
    counts = spawn.Value("q", 0), spawn.Value("q", 0)
    engine = spawn.Process(target=fake_engine, args=(theirs, *counts), daemon=True)
    engine.start()
    url = f"http://127.0.0.1:{receive(mine, engine)}/v1"
    ours, other = spawn.Pipe()
    server = spawn.Process(target=endpoint, args=(other, url), daemon=True)
    server.start()
    doors = []
    for address, key in receive(ours, server):
        parts = urlsplit(address)
        assert parts.hostname is not None
        assert parts.port is not None
        doors.append(
            Door(parts.hostname, parts.port, parts.path, key, "policy", MOST_BYTES, server.pid or 0)
        )
    try:
        yield doors[0], doors[1]
    finally:
        server.terminate()
        engine.terminate()


DOORS = {"serve": served, "endpoint": endpoints}


async def run(names: list[str], kinds: list[str], count: int) -> list[Row]:
    """Measure all kinds at all doors."""
    mine, theirs = spawn.Pipe()
    crowd = spawn.Process(target=attackers, args=(theirs,), daemon=True)
    crowd.start()
    receive(mine, crowd)
    rows = []
    for name in names:
        async with DOORS[name]() as (honest, hostile):
            client = Honest(honest)
            await client.ask_for(1.0)
            for kind in kinds:
                rows.append(await measure(name, client, hostile, kind, count, mine))
                say(rows[-1].line())
    mine.send(None)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--count", type=int, default=500, help="hostile requests at once")
    parser.add_argument("--door", action="append", choices=DOORS, help="default: both")
    parser.add_argument("--kind", action="append", choices=KINDS, help="default: all")
    args = parse(parser, count=5, kind=["no HTTP", "9,999 messages"])
    rows = asyncio.run(run(args.door or [*DOORS], args.kind or [*KINDS], args.count))
    print("\n| door | kind | answers | s | honest | median | longest | its CPU | control | load |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        print(row.line())
    longest = max(row.cpu for row in rows)
    print_result(
        args,
        "hostile_requests",
        ratio=TARGET / longest,
        target=1.0,
        longest_cpu=longest,
        longest=max(row.longest for row in rows),
        longest_control=max(row.control for row in rows),
        requests=args.count,
    )


if __name__ == "__main__":
    main()
