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
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.waiting import until, wait_until
from vf.runtime.errors import SandboxError
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.docker_sandbox import DockerSandbox
from vf.sandbox.container.opening import open_container
from vf.sandbox.container.profile import DEFAULT_IMAGE
from vf.sandbox.container.reaper import find, reap

from .conftest import PROFILE, probe, processes_of

CLIENT = """
import asyncio, sys
from vf.sandbox.container.opening import open_container
async def main():
    async with open_container() as sandbox:
        print(sandbox.name, flush=True)
        running = asyncio.create_task(sandbox.exec("setsid sleep 1250 & sleep 1251", timeout=300))
        while True:
            result = await sandbox.python("6 * 7")
            print(result.stdout.strip(), flush=True)
            if not sys.stdin.readline():
                return
asyncio.run(main())
"""


class Client:
    """Another run: a process of its own with a sandbox in which something runs."""

    def __init__(self) -> None:
        root = Path(__file__).parents[3]
        self.process = subprocess.Popen(
            [sys.executable, "-c", CLIENT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(root)},
        )
        assert self.process.stdout is not None
        self.name = self.process.stdout.readline().strip()
        assert self.process.stdout.readline() == "42\n"

    def ask(self) -> str:
        """Have it use its sandbox; return what came of it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("again\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        """End it, well or badly."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def start_client(engine: Engine) -> Iterator[Callable[[], Client]]:
    """Starts other runs; all are ended."""
    clients: list[Client] = []

    def start() -> Client:
        clients.append(Client())
        return clients[-1]

    yield start
    for client in clients:
        client.end()


def names(engine: Engine) -> set[str]:
    return {item.name for item in asyncio.run(find(engine))}


def test_a_client_that_is_killed_leaves_nothing(
    engine: Engine, start_client: Callable[[], Client]
) -> None:
    client = start_client()
    container = engine.call_now("inspect_container", client.name)["Id"]
    wait_until(lambda: sum("sleep 125" in line for line in processes_of(container).values()) >= 2)
    client.process.send_signal(signal.SIGKILL)
    client.process.wait()
    # Its end of the stream is closed with it: the supervisor ends without anybody's help.
    wait_until(lambda: processes_of(container) == {})
    wait_until(lambda: client.name not in names(engine))
    asyncio.run(reap(engine))  # has nothing to do, and says so by not failing


def test_the_reaper_removes_what_a_killed_client_left_behind(
    engine: Engine, start_client: Callable[[], Client]
) -> None:
    client = start_client()
    container = engine.call_now("inspect_container", client.name)["Id"]
    # As if the container could not have noticed: it stands still while its client dies.
    engine.call_now("pause", client.name)
    client.process.send_signal(signal.SIGKILL)
    client.process.wait()
    removed = {item.name: item.dead for item in asyncio.run(reap(engine))}
    if client.name in removed:  # otherwise another run on this engine removed it first
        assert "is gone" in str(removed[client.name])
    assert client.name not in names(engine)
    assert processes_of(container) == {}


def test_the_reapers_of_two_runs_leave_each_other_alone(
    engine: Engine, start_client: Callable[[], Client]
) -> None:
    one, other = start_client(), start_client()

    async def run() -> None:
        async with open_container(PROFILE) as mine:  # its reaper ran when it was opened
            for _ in range(3):
                removed = await reap(engine)
                assert not {item.name for item in removed} & {one.name, other.name, mine.name}
            assert {one.name, other.name, mine.name} <= {item.name for item in await find(engine)}
            await probe(mine)

    asyncio.run(run())
    third = start_client()  # and its reaper too
    assert [client.ask() for client in (one, other, third)] == ["42"] * 3
    one.end()
    assert [client.ask() for client in (other, third)] == ["42"] * 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_client_that_is_told_to_end_leaves_nothing(
    engine: Engine, start_client: Callable[[], Client], number: signal.Signals
) -> None:
    client = start_client()
    client.process.send_signal(number)
    client.end()
    wait_until(lambda: client.name not in names(engine))


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
