"""What a sandbox's tunnel costs: `python benchmarks/tunnel.py`.

Needs a container engine and the image (`vf-rl sandbox build`). One small HTTP server of this
process is asked by one and the same program, in turns:

- host: run on this machine, the floor.
- bridge: run in a container that has a network, by its gateway: the usual way.
- tunnel: run in a container without a network, through `sandbox.forward`.

Each program keeps its connection, as clients of models do, and sends requests of 2 kB one after the
other; answers have 1 kB. Then 200 MB flow each way, and meanwhile programs are run in the same
sandbox. CPU is that of this process, which serves as well, and of the supervisor in the container.

The last line is JSON. Its ratio is the target for what a request takes longer than from the host,
1 ms, over what it does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import resource
import sys
import time
from collections.abc import AsyncIterator
from statistics import median

from aiohttp import web
from harness import missing, need_containers, parse, print_result, say

from vf.sandbox.container.docker_sandbox import DockerSandbox
from vf.sandbox.container.hardening import Profile
from vf.sandbox.container.opening import open_container

TARGET_MS = 1.0
GATEWAY = """
import socket, struct
for line in open("/proc/net/route"):
    words = line.split()
    if words[1] == "00000000":
        print(socket.inet_ntoa(struct.pack("=I", int(words[2], 16))))
        break
"""
CALLS = """
import http.client, sys, time
host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
connection = http.client.HTTPConnection(host, port)
times = []
for _ in range(count + 20):
    began = time.perf_counter()
    connection.request("POST", "/call", b"x" * 2000)
    connection.getresponse().read()
    times.append(time.perf_counter() - began)
print(1000 * sorted(times[20:])[count // 2])
"""
FLOW = """
import http.client, sys, time
host, port, bulk = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
connection = http.client.HTTPConnection(host, port)
began = time.perf_counter()
connection.request("POST", "/sink", bytes(bulk * 10**6))
connection.getresponse().read()
middle = time.perf_counter()
connection.request("GET", f"/source/{bulk}")
answer = connection.getresponse()
while answer.read(2**18): pass
print(bulk / (middle - began), bulk / (time.perf_counter() - middle))
"""


async def call(request: web.Request) -> web.Response:
    """Answer as an endpoint does, except for the model."""
    body = await request.read()
    return web.json_response({"read": len(body), "text": "y" * 1000})


async def sink(request: web.Request) -> web.Response:
    """Take whatever comes."""
    async for _ in request.content.iter_any():
        pass
    return web.Response()


async def source(request: web.Request) -> web.StreamResponse:
    """Send what is to flow."""
    answer = web.StreamResponse()
    await answer.prepare(request)
    for _ in range(int(request.match_info["bulk"]) * 10):
        await answer.write(bytes(10**5))
    return answer


@contextlib.asynccontextmanager
async def serving(*hosts: str) -> AsyncIterator[list[int]]:
    """Serve on each of these addresses; yield the ports."""
    app = web.Application()
    app.add_routes([web.post("/call", call), web.post("/sink", sink)])
    app.add_routes([web.get("/source/{bulk}", source)])
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        for host in hosts:
            await web.TCPSite(runner, host, 0).start()
        yield [address[1] for address in runner.addresses]
    finally:
        await runner.cleanup()


async def on_host(code: str, *arguments: object) -> str:
    """Run a program on this machine."""
    words = [sys.executable, "-I", "-c", code, *map(str, arguments)]
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    return (await process.communicate())[0].decode()


async def inside(sandbox: DockerSandbox, code: str, *arguments: object) -> str:
    """Run a program in a container."""
    words = ["python3", "-I", "-c", code, *map(str, arguments)]
    result = await sandbox.exec(words, timeout=600)
    if not result.ok:
        raise SystemExit(result.stderr)
    return result.stdout


def cpu() -> float:
    """Return this process's time on the processor, seconds."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def run(args: argparse.Namespace) -> None:
    times: dict[str, list[float]] = {"host": [], "bridge": [], "tunnel": []}
    ours: dict[str, list[float]] = {name: [] for name in times}
    supervisor = []
    say("starting two containers")
    async with contextlib.AsyncExitStack() as stack:
        networked = await stack.enter_async_context(open_container(Profile(network="bridge")))
        sandbox = await stack.enter_async_context(open_container())
        gateway = (await inside(networked, GATEWAY)).strip()
        if not gateway:
            missing("an engine whose bridge network has a gateway")
        port, outer = await stack.enter_async_context(serving("127.0.0.1", gateway))
        inner = await sandbox.forward(("127.0.0.1", port))
        assert sandbox._session is not None
        for number in range(args.rounds):
            say(f"round {number + 1} of {args.rounds}")
            for name in times:
                before = cpu(), (await sandbox._session.stats())["cpu"]
                if name == "host":
                    said = await on_host(CALLS, "127.0.0.1", port, args.calls)
                elif name == "bridge":
                    said = await inside(networked, CALLS, gateway, outer, args.calls)
                else:
                    said = await inside(sandbox, CALLS, "127.0.0.1", inner, args.calls)
                    used = (await sandbox._session.stats())["cpu"] - before[1]
                    supervisor.append(1000 * used / args.calls)
                times[name].append(float(said))
                ours[name].append(1000 * (cpu() - before[0]) / args.calls)
        say(f"{args.bulk} MB each way, through the tunnel and from the host")
        flow = asyncio.create_task(inside(sandbox, FLOW, "127.0.0.1", inner, args.bulk))
        waits = []
        while not flow.done():
            began = time.perf_counter()
            await sandbox.exec(["true"])
            waits.append(1000 * (time.perf_counter() - began))
            await asyncio.sleep(0.1)
        through = [float(word) for word in (await flow).split()]
        direct = [
            float(word) for word in (await on_host(FLOW, "127.0.0.1", port, args.bulk)).split()
        ]
    p50 = {name: round(median(found), 3) for name, found in times.items()}
    added = p50["tunnel"] - p50["host"]
    rates = {"tunnel": through, "host": direct}
    print_result(
        args,
        "tunnel",
        ratio=round(TARGET_MS / added, 2),
        target=1.0,
        added_ms=round(added, 3),
        p50_ms=p50,
        cpu_ms_per_call={name: round(median(spent), 3) for name, spent in ours.items()},
        supervisor_cpu_ms_per_call=round(median(supervisor), 3),
        mb_per_s_up_down={name: list(map(round, rate)) for name, rate in rates.items()},
        exec_ms_meanwhile={"p50": round(median(waits), 1), "max": round(max(waits), 1)},
        options=vars(args),
        cores=os.cpu_count(),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=500, help="of each kind, in a round")
    parser.add_argument("--bulk", type=int, default=200, help="MB that flow each way")
    args = parse(parser, rounds=1, calls=20, bulk=2)
    need_containers()
    asyncio.run(run(args))


if __name__ == "__main__":
    main()
