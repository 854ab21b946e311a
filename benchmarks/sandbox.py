"""The cost of sandboxed code, compared with the usual ways: `python benchmarks/sandbox.py`.

Needs a container engine and the image (`vf-rl sandbox build`). In one run, on one machine, one
after the other in every round:

- cli: the `docker` program, one process per call.
- sdk: the docker SDK's `containers.run` and `exec_run`.
- ours: `DockerSandbox`, hardened, over its held-open stream.
- bubblewrap: `BubblewrapSandbox`, the same without an engine.

Each does the same: create a container that is ready for its first call, run `true`, evaluate a
Python expression, read a file of 1 MiB that lies in a tmpfs. Theirs have no interpreter that lives
on, so each of their Python calls starts one. Theirs run with no hardening but `--network none`.
Ours is also acquired from a warm pool. Of `ours` and `bubblewrap`: how many are made, used once and
ended a second, four at a time, and what each takes of the host's memory while it idles.

Then so many episodes at once, each in a container of its own, all alive at the same time: every
answer is checked. Memory is measured while they idle: what the engine says of each container, and
what the host lost for all of them.

Last, what tasks bring of their own: containers with a writable root a second, one of a task's own
spec that is kept ready, and folders copied in and out, beside the SDK's archives.

The last line is JSON: times are medians in milliseconds; ratios are the SDK's over ours, and
`ratio` is that of `true`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol

from harness import missing, need_containers, parse, print_result, say
from peers import versions_of
from sandbox_tasks import task_rows
from sandbox_turnover import available_mib, turnovers

from vf.runtime.errors import ConfigError
from vf.sandbox.bubblewrap.bubblewrap_sandbox import BubblewrapSandbox
from vf.sandbox.bubblewrap.system import find_system
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.docker_sandbox import DockerSandbox
from vf.sandbox.container.hardening import DEFAULT_IMAGE, Profile
from vf.sandbox.container.opening import open_container, open_engine, open_pool
from vf.sandbox.container.reaper import find
from vf.sandbox.contract import Sandbox

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container

TARGETS = {"exec": 20.0, "python": 100.0}  # times faster than the SDK's exec_run of `true`
ACQUIRE_TARGET = 10.0  # ms
BIG = 2**20  # bytes
EXPRESSION = "6 * 7"
Samples = dict[str, list[float]]


class Contender(Protocol):
    """One way to use a container that is there."""

    async def true(self) -> None: ...

    async def python(self) -> None: ...

    async def read(self) -> None: ...


class Cli:
    """The `docker` program."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def true(self) -> None:
        docker("exec", self.name, "true")

    async def python(self) -> None:
        said = docker("exec", self.name, "python3", "-c", f"print({EXPRESSION})")
        assert said == b"42\n"

    async def read(self) -> None:
        assert len(docker("exec", self.name, "cat", "/tmp/big")) == BIG


class Sdk:
    """The SDK's `exec_run`."""

    def __init__(self, container: Container) -> None:
        self.container = container

    async def true(self) -> None:
        assert self.container.exec_run(["true"]).exit_code == 0

    async def python(self) -> None:
        said = self.container.exec_run(["python3", "-c", f"print({EXPRESSION})"])
        assert said.output == b"42\n"

    async def read(self) -> None:
        assert len(self.container.exec_run(["cat", "/tmp/big"]).output) == BIG


class Ours:
    """The held-open stream."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    async def true(self) -> None:
        assert (await self.sandbox.exec(["true"])).returncode == 0

    async def python(self) -> None:
        assert (await self.sandbox.python(EXPRESSION)).stdout == "42\n"

    async def read(self) -> None:
        assert len(await self.sandbox.read_file("/tmp/big")) == BIG


def docker(*words: str) -> bytes:
    """Run the program and return what it printed."""
    return subprocess.run(["docker", *words], capture_output=True, check=True).stdout


RUN = ("run", "--detach", "--rm", "--network", "none", "--tmpfs", "/tmp", DEFAULT_IMAGE)
MAKE_BIG = ["sh", "-c", f"head -c {BIG} /dev/zero > /tmp/big"]


@contextlib.asynccontextmanager
async def cli() -> AsyncIterator[Contender]:
    name = docker(*RUN, "sleep", "3600").decode().strip()
    try:
        docker("exec", name, *MAKE_BIG)
        yield Cli(name)
    finally:
        docker("rm", "--force", name)


@contextlib.asynccontextmanager
async def sdk() -> AsyncIterator[Contender]:
    import docker as package

    client = package.from_env()
    container = sdk_container(client)
    try:
        assert container.exec_run(MAKE_BIG).exit_code == 0
        yield Sdk(container)
    finally:
        container.remove(force=True)
        client.close()


def sdk_container(client: DockerClient) -> Container:
    return client.containers.run(
        DEFAULT_IMAGE,
        ["sleep", "3600"],
        detach=True,
        auto_remove=True,
        network_mode="none",
        tmpfs={"/tmp": ""},
    )


@contextlib.asynccontextmanager
async def ours() -> AsyncIterator[Contender]:
    async with open_container() as sandbox:
        assert (await sandbox.exec(MAKE_BIG)).ok
        yield Ours(sandbox)


@contextlib.asynccontextmanager
async def bubblewrap() -> AsyncIterator[Contender]:
    async with await BubblewrapSandbox.create() as sandbox:
        assert (await sandbox.exec(MAKE_BIG)).ok
        yield Ours(sandbox)


CONTENDERS = {"cli": cli, "sdk": sdk, "ours": ours, "bubblewrap": bubblewrap}
OWN = ("ours", "bubblewrap")


async def timed(work: Callable[[], Awaitable[Any]], count: int) -> list[float]:
    """Return how long each call took, in milliseconds."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        await work()
        times.append(1000 * (time.perf_counter() - began))
    return times


async def calls(samples: dict[str, Samples], theirs: int, mine: int) -> None:
    """Time every kind of call, in one container of each contender."""
    for name, opened in CONTENDERS.items():
        count = mine if name in OWN else theirs
        async with opened() as contender:
            for what in ("true", "python", "read"):
                work = getattr(contender, what)
                await timed(work, 2)  # what is done once
                samples[name].setdefault(what, []).extend(await timed(work, count))


async def creations(samples: dict[str, Samples], count: int) -> None:
    """Time how long a container takes until it is ready for its first call."""
    import docker as package

    client = package.from_env()
    for _ in range(count):
        began = time.perf_counter()
        name = docker(*RUN, "sleep", "3600").decode().strip()
        samples["cli"].setdefault("create", []).append(1000 * (time.perf_counter() - began))
        docker("rm", "--force", name)
        began = time.perf_counter()
        container = sdk_container(client)
        samples["sdk"].setdefault("create", []).append(1000 * (time.perf_counter() - began))
        container.remove(force=True)
    client.close()
    async with open_engine(Profile()) as (engine, profile):
        for _ in range(count):
            began = time.perf_counter()
            sandbox = await DockerSandbox.create(engine, profile, warm=True)
            samples["ours"].setdefault("create", []).append(1000 * (time.perf_counter() - began))
            await sandbox.close()
    for warm in [True, False] * count:
        began = time.perf_counter()
        async with await BubblewrapSandbox.create(warm=warm) as box:
            if not warm:
                await box.exec(["true"])
            what = "create" if warm else "cold"
            samples["bubblewrap"].setdefault(what, []).append(1000 * (time.perf_counter() - began))


async def acquisitions(samples: dict[str, Samples], count: int) -> None:
    """Time how long it takes to get one from a pool that is full."""
    times = samples["ours"].setdefault("acquire", [])
    async with open_pool(size=4) as pool:
        for _ in range(count):
            await pool.filled()
            began = time.perf_counter()
            async with pool.acquire():
                times.append(1000 * (time.perf_counter() - began))


async def crowd(episodes: int) -> dict[str, float]:
    """Run so many episodes at once, all with a container; return what it took."""
    errors: list[str] = []
    times: list[float] = []
    before, began = available_mib(), time.perf_counter()
    async with open_pool(size=episodes) as pool:
        await pool.filled()
        filled = time.perf_counter() - began
        each = await own_mib()
        host = (before - available_mib()) / episodes
        everybody = asyncio.Barrier(episodes)

        async def episode(number: int) -> None:
            try:
                async with pool.acquire() as sandbox:
                    await everybody.wait()
                    await sandbox.python(f"x = {number}")
                    for turn in range(10):
                        began = time.perf_counter()
                        told = await sandbox.python(f"x + {turn}")
                        times.append(1000 * (time.perf_counter() - began))
                        assert told.stdout == f"{number + turn}\n", told
                    told = await sandbox.exec(["cat"], input=str(number))
                    assert told.stdout == str(number), told
                    data = bytes([number % 256]) * 65536
                    await sandbox.write_file("data", data)
                    assert await sandbox.read_file("data") == data
                    await everybody.wait()
            except BaseException as error:
                errors.append(repr(error))
                await everybody.abort()
                raise

        work = (episode(number) for number in range(episodes))
        pool.size = 1  # none need be ready for after
        began = time.perf_counter()
        await asyncio.gather(*work, return_exceptions=True)
        took = time.perf_counter() - began
    return {
        "episodes": episodes,
        "errors": len(errors),
        "fill_s": round(filled, 1),
        "made_per_s": round(episodes / filled, 2),
        "episodes_s": round(took, 2),
        "python_p50_ms": round(median(times), 2) if times else 0.0,
        "container_mib": round(median(each), 1),
        "host_mib_per_container": round(host, 1),
    }


async def own_mib() -> list[float]:
    """Return the memory of our containers, as the engine counts it, without what can be dropped."""
    found = []
    with contextlib.closing(Engine.connect()) as engine:
        for item in await find(engine):
            if not item.mine:
                continue
            answer = await engine.call("stats", item.id, stream=False, one_shot=True)
            usage = answer["memory_stats"]
            stats = usage["stats"]
            droppable = stats.get("total_inactive_file", stats.get("inactive_file", 0))
            found.append((usage["usage"] - droppable) / 2**20)
    return found


def table(samples: dict[str, Samples]) -> dict[str, dict[str, float]]:
    """Print the medians, and return them."""
    medians = {
        name: {what: round(median(times), 3) for what, times in found.items()}
        for name, found in samples.items()
    }
    print(f"\n{'p50, ms':<10}" + "".join(f"{name:>12}" for name in medians) + "   sdk / ours")
    for what in ("create", "cold", "acquire", "true", "python", "read"):
        row = "".join(
            f"{found[what]:12.3f}" if what in found else f"{'-':>12}" for found in medians.values()
        )
        sdk_time = medians["sdk"].get(what)
        ratio = f"{sdk_time / medians['ours'][what]:12.1f}" if sdk_time else f"{'-':>12}"
        print(f"{what:<10}{row} {ratio}")
    return medians


async def run(args: argparse.Namespace) -> None:
    samples: dict[str, Samples] = {name: {} for name in CONTENDERS}
    for number in range(args.rounds):
        say(f"round {number + 1} of {args.rounds}")
        await creations(samples, args.creations)
        await calls(samples, args.calls, 10 * args.calls)
        await acquisitions(samples, args.creations)
    medians = table(samples)
    mine, theirs = medians["ours"], medians["sdk"]
    say("made, used once and ended, four at a time")
    ended = await turnovers(4 * args.creations)
    print(json.dumps(ended, indent=2))
    say(f"{args.episodes} episodes at once, each in its container")
    at_once = await crowd(args.episodes)
    print(json.dumps(at_once, indent=2))
    say("containers of tasks, and folders copied")
    of_tasks = await task_rows(args.episodes // 2, args.creations)
    with contextlib.closing(Engine.connect()) as engine:
        engine_version = engine.call_now("version")["Version"]
    print_result(
        args,
        "sandbox",
        ratio=round(theirs["true"] / mine["true"], 1),
        target=TARGETS["exec"],
        python_ratio=round(theirs["true"] / mine["python"], 1),
        python_target=TARGETS["python"],
        acquire_ms=mine["acquire"],
        acquire_target_ms=ACQUIRE_TARGET,
        read_ratio=round(theirs["read"] / mine["read"], 1),
        options=vars(args),
        p50_ms=medians,
        turnover=ended,
        at_once=at_once,
        tasks=of_tasks,
        cores=os.cpu_count(),
        versions={"python": platform.python_version(), "engine": engine_version}
        | versions_of("docker"),
    )
    if at_once["errors"]:
        raise SystemExit("episodes failed")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--creations", type=int, default=8, help="of each kind, in a round")
    parser.add_argument("--calls", type=int, default=20, help="of theirs, in a round; ours: 10 x")
    parser.add_argument("--episodes", type=int, default=64, help="at once")
    args = parse(parser, rounds=1, creations=1, calls=1, episodes=2)
    need_containers()
    if shutil.which("docker") is None:
        missing("the `docker` program")
    try:
        find_system()
    except ConfigError as error:
        missing(str(error))
    asyncio.run(run(args))


if __name__ == "__main__":
    main()
