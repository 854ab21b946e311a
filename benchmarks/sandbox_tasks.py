"""Rows of `benchmarks/sandbox.py` for per-task sandboxes: writable roots, images, folders.

Each is beside the docker SDK where that can do the same: copying a folder into a container and out
of it goes through `put_archive` and `get_archive` there.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import tarfile
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

from vf.sandbox.container.docker_sandbox import DockerSandbox
from vf.sandbox.container.hardening import DEFAULT_IMAGE, Profile
from vf.sandbox.container.opening import open_container, open_engine
from vf.sandbox.contract import Sandbox
from vf.sandbox.hosting.host import RECENT
from vf.sandbox.hosting.source import sandbox_source
from vf.sandbox.spec import SandboxSpec

POOL = 2  # containers kept ready
AT_ONCE = 4  # containers made at a time
RATE_TARGET = 8.0  # containers a second
ACQUIRE_TARGET = 10.0  # ms
FILES, SIZE = 200, 20_000  # of the folder that is copied: how many, and bytes of each


async def rate(count: int) -> float:
    """Return how many containers with a writable root are made in a second, from a warm image.

    Each is ready for its first call; they are removed afterwards.
    """
    made: list[DockerSandbox] = []
    async with open_engine(Profile(writable=True)) as (engine, profile):
        places = asyncio.Semaphore(AT_ONCE)

        async def make() -> None:
            async with places:
                made.append(await DockerSandbox.create(engine, profile))

        try:
            await make()  # what is done once
            began = time.perf_counter()
            await asyncio.gather(*(make() for _ in range(count)))
            return count / (time.perf_counter() - began)
        finally:
            await asyncio.gather(*(sandbox.close() for sandbox in made))


async def acquisitions(count: int) -> list[float]:
    """Return how long a container of a task's spec takes where its pool is full, milliseconds."""
    spec = SandboxSpec(writable=True, workdir="/root")
    times = []
    source = sandbox_source({"backend": "docker", "pool": POOL})
    await source.prefetch([spec] * (RECENT * POOL + count))  # the pool is all this spec's
    async with source.open(spec):
        pass
    for _ in range(count):
        async with asyncio.timeout(120):
            while not any(host.containers.ready for host in source.stats()):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        began = time.perf_counter()
        async with source.open(spec):
            times.append(1000 * (time.perf_counter() - began))
    return times


def make_folder(folder: Path) -> None:
    """Fill a folder with files that cannot be packed."""
    for number in range(FILES):
        place = folder / f"{number % 10}" / f"{number}.bin"
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(os.urandom(SIZE))


async def copies(count: int) -> dict[str, dict[str, list[float]]]:
    """Return how long a folder takes into a container and out, ours and the SDK's, milliseconds."""
    with tempfile.TemporaryDirectory(prefix="vf-bench-") as name:
        folder = Path(name) / "from"
        folder.mkdir()
        make_folder(folder)
        async with open_container(Profile(writable=True, workdir="/root")) as sandbox:
            ours = await _ours(sandbox, folder, count)
        sdk = await asyncio.to_thread(_sdk, folder, count)
    return {"ours": ours, "sdk": sdk}


async def _ours(sandbox: Sandbox, folder: Path, count: int) -> dict[str, list[float]]:
    out = folder.parent / "out"
    return {
        "upload": await _timed(lambda n: sandbox.upload(folder, f"in{n}"), count),
        "download": await _timed(lambda n: sandbox.download("in0", out / str(n)), count),
    }


async def _timed(work: Callable[[int], Awaitable[None]], count: int) -> list[float]:
    times = []
    for number in range(count):
        began = time.perf_counter()
        await work(number)
        times.append(1000 * (time.perf_counter() - began))
    return times


def _sdk(folder: Path, count: int) -> dict[str, list[float]]:
    import docker as package

    client = package.from_env()
    container: Any = client.containers.run(
        DEFAULT_IMAGE, ["sleep", "3600"], detach=True, auto_remove=True, network_mode="none"
    )
    times: dict[str, list[float]] = {"upload": [], "download": []}
    try:
        for number in range(count):
            container.exec_run(["mkdir", f"/root/in{number}"])
            began = time.perf_counter()
            packed = io.BytesIO()
            with tarfile.open(fileobj=packed, mode="w") as archive:
                archive.add(folder, arcname=".")
            container.put_archive(f"/root/in{number}", packed.getvalue())
            times["upload"].append(1000 * (time.perf_counter() - began))
            began = time.perf_counter()
            pieces, _ = container.get_archive("/root/in0")
            with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as archive:
                archive.extractall(folder.parent / f"sdk{number}", filter="data")
            times["download"].append(1000 * (time.perf_counter() - began))
    finally:
        with contextlib.suppress(Exception):
            container.remove(force=True)
        client.close()
    return times


async def task_rows(containers: int, count: int) -> dict[str, Any]:
    """Measure, print, and return what goes into the last line."""
    found: dict[str, Any] = {
        "writable_per_s": round(await rate(containers), 1),
        "writable_per_s_target": RATE_TARGET,
        "acquire_spec_ms": round(median(await acquisitions(count)), 3),
        "acquire_spec_target_ms": ACQUIRE_TARGET,
    }
    times = await copies(count)
    for what in ("upload", "download"):
        ours, sdk = (median(times[name][what]) for name in ("ours", "sdk"))
        found[what] = {"ours_ms": round(ours, 1), "sdk_ms": round(sdk, 1)}
        found[what]["ratio"] = round(sdk / ours, 2)
    print(f"\ncontainers with a writable root: {found['writable_per_s']} a second")
    print(f"acquire a task's own, kept ready: {found['acquire_spec_ms']} ms")
    for what in ("upload", "download"):
        print(f"{what} {FILES} files of {SIZE} bytes, ms: {found[what]}")
    return found
