"""The other side dies: the client, the engine, another run. Nothing is left, nobody else is hit."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.parts import require
from tests.sandbox.second_engine import SecondEngine
from tests.waiting import until, wait_until
from vf.runtime.errors import SandboxError
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.docker_sandbox import DockerSandbox
from vf.sandbox.container.reaper import find, reap

from .conftest import PROFILE, probe, processes_of

CLIENT = """
import asyncio
from vf.sandbox.container.opening import open_container
async def main():
    async with open_container() as sandbox:
        print(sandbox.name, flush=True)
        await sandbox.exec("setsid sleep 1250 & sleep 1251", timeout=300)
asyncio.run(main())
"""


def names(engine: Engine) -> set[str]:
    return {item.name for item in asyncio.run(find(engine))}


def test_the_reaper_removes_what_a_killed_client_left_behind(engine: Engine) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CLIENT], stdout=subprocess.PIPE, text=True
    ) as client:
        assert client.stdout is not None
        name = client.stdout.readline().strip()
        container = engine.call_now("inspect_container", name)["Id"]
        try:
            wait_until(lambda: {"sleep 1250", "sleep 1251"} <= {*processes_of(container).values()})
            # As if the container could not have noticed: it pauses while its client dies.
            engine.call_now("pause", name)
        finally:
            client.kill()
    removed = {item.name: item.dead for item in asyncio.run(reap(engine))}
    if name in removed:  # otherwise another run on this engine removed it first
        assert "is gone" in str(removed[name])
    assert name not in names(engine)
    assert processes_of(container) == {}


FORKS = CLIENT.replace("import asyncio", "import asyncio, os, time").replace(
    "        await sandbox",
    "        if os.fork() == 0:\n            time.sleep(1000)\n        await sandbox",
)


def test_a_container_ends_with_its_client_though_a_child_of_that_lives(engine: Engine) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", FORKS], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as client:
        assert client.stdout is not None
        name = client.stdout.readline().strip()
        try:
            container = engine.call_now("inspect_container", name)["Id"]
            wait_until(lambda: {"sleep 1250", "sleep 1251"} <= {*processes_of(container).values()})
            client.kill()
            wait_until(lambda: name not in names(engine))
            assert processes_of(container) == {}
        finally:
            os.killpg(client.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def second(containers: None) -> Iterator[SecondEngine]:
    """An engine of our own with the same image."""
    require("dockerd")
    found = SecondEngine()
    try:
        found.load()
        yield found
    finally:
        found.close()


@pytest.mark.slow
def test_an_engine_that_is_restarted_under_load_loses_honestly(
    engine: Engine, second: SecondEngine
) -> None:
    used = 0

    async def use(sandbox: DockerSandbox) -> str:
        """Use it until it is lost; return the error's text."""
        nonlocal used
        try:
            while True:
                assert (await sandbox.exec("echo right")).stdout == "right\n"
                assert (await sandbox.python("6 * 7")).stdout == "42\n"
                used += 1
        except SandboxError as error:
            return str(error)

    async def run() -> None:
        engine = second.connect()
        sandboxes = [await DockerSandbox.create(engine, PROFILE) for _ in range(3)]
        for sandbox in sandboxes:
            await probe(sandbox)
        users = [asyncio.create_task(use(sandbox)) for sandbox in sandboxes]
        await until(lambda: used >= 6)
        await asyncio.to_thread(second.stop)
        async with asyncio.timeout(60):
            said = await asyncio.gather(*users)
        assert all(said)
        assert not any(sandbox.alive for sandbox in sandboxes)
        engine.close()

        await asyncio.to_thread(second.start)
        engine = second.connect()
        await reap(engine)
        async with await DockerSandbox.create(engine, PROFILE) as fresh:
            await probe(fresh)
        engine.close()

    asyncio.run(run())
