"""The other side dies: the client, the engine, another run. Nothing is left, nobody else is hit."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import until, wait_until
from vf.runtime.errors import SandboxError
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.docker_sandbox import DockerSandbox
from vf.sandbox.container.profile import DEFAULT_IMAGE
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
            # As if the container could not have noticed: it stands still while its client dies.
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


class SecondEngine:
    """A dockerd of our own, which may be restarted: the machine's serves others too."""

    def __init__(self, image: bytes) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="vf-dockerd-"))
        self.address = f"unix://{self.folder}/docker.sock"
        self.process: subprocess.Popen[bytes] | None = None
        self.start()
        engine = self.connect()
        engine.call_now("load_image", image)
        engine.close()

    def start(self) -> None:
        """Start it and wait until it answers."""
        folder = self.folder
        with (folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    # In a network of its own: without a bridge it would remove docker0 from ours.
                    *("unshare", "--net", "dockerd"),
                    *("--host", self.address, "--data-root", f"{folder}/data"),
                    *("--exec-root", f"{folder}/exec", "--pidfile", f"{folder}/pid"),
                    *("--bridge", "none", "--iptables=false", "--ip-masq=false"),
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_until(self._answers)

    def _answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            pytest.skip(f"no second engine here: {self.said()}")
        with contextlib.suppress(Exception):
            self.connect().close()
            return True
        return False

    def said(self) -> str:
        """Return the end of its log."""
        return (self.folder / "log").read_text("utf-8", "replace")[-1500:]

    def connect(self) -> Engine:
        """Connect to it."""
        import docker

        return Engine(docker.APIClient(base_url=self.address, version="auto", timeout=60))

    def stop(self) -> None:
        """Stop it, and wait until it is gone with its containerd."""
        assert self.process is not None
        self.process.terminate()
        self.process.wait(60)
        wait_until(lambda: not self._processes())

    def _processes(self) -> list[tuple[Path, str]]:
        """Return what belongs to it: where in /proc, and the command line."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if str(self.folder) in line and folder.name != str(os.getpid()):
                    found.append((folder, line))
        return found

    def _kill(self) -> bool:
        """Kill what belongs to it, containers too; return whether there was nothing left."""
        left = self._processes()
        for folder, _ in left:
            with contextlib.suppress(OSError):
                for child in (folder / "task" / folder.name / "children").read_text().split():
                    os.kill(int(child), signal.SIGKILL)
                os.kill(int(folder.name), signal.SIGKILL)
        return not left

    def close(self) -> None:
        """Kill it with all that it had."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        wait_until(self._kill)
        for line in reversed(Path("/proc/mounts").read_text().splitlines()):
            place = line.split()[1]
            if place.startswith(str(self.folder)):
                subprocess.run(["umount", "-l", place], check=False, capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def second(containers: None) -> Iterator[SecondEngine]:
    """An engine of our own with the same image."""
    if os.getuid() != 0 or not shutil.which("dockerd"):
        pytest.skip("a second engine needs root and dockerd")
    engine = Engine.connect()
    image = b"".join(engine.client.get_image(DEFAULT_IMAGE))
    engine.close()
    found = SecondEngine(image)
    yield found
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
