"""An arena: attacks on real sandboxes, and what is looked at after each one.

The tests of a file share a sandbox as long as no attack has brought it down; a probe after every
attack finds out. An attack that brings it down is one that ends with SandboxError, and then nothing
of the sandbox may be left. Each attack is made on a container and on bubblewrap's namespaces.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import until
from vf.runtime.errors import SandboxError
from vf.sandbox.bubblewrap.bubblewrap_sandbox import BubblewrapSandbox, NamespaceProfile
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.docker_sandbox import DockerSandbox
from vf.sandbox.container.doctor import prepare
from vf.sandbox.container.hardening import Profile
from vf.sandbox.container.reaper import find
from vf.sandbox.contract import Limits
from vf.sandbox.session_sandbox import SessionSandbox

MIB = 2**20
Attack = Callable[[Any], Awaitable[None]]
PROFILE = Profile(
    limits=Limits(
        memory=256 * MIB, workspace=64 * MIB, tmp=16 * MIB, pids=64, files=2000, lifetime=300
    )
)
ROOT = replace(PROFILE, writable=True)  # the code is root, and may change every file


def processes_where(belongs: Callable[[Path], bool]) -> dict[int, str]:
    """Return some of the processes that this machine sees: pid -> command line.

    Args:
        belongs: Whether a process is one of them, by its folder in /proc.
    """
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if belongs(folder):
                    line = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(folder.name)] = line.decode("utf-8", "replace").strip()
            except OSError:
                continue  # it ended meanwhile
    return found


def processes_of(container: str) -> dict[int, str]:
    """Return what runs in a container, as this machine sees it: pid -> command line."""
    return processes_where(lambda folder: container in (folder / "cgroup").read_text())


def memory_of_this_process() -> int:
    """Return the resident memory, bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


class Arena:
    """One sandbox at a time, and a loop that outlives the tests of a file.

    Attributes:
        profile: How the containers are made; None: namespaces, with the limits of ``PROFILE``.
        engine: Where the containers are.
    """

    def __init__(self, profile: Profile | None, engine: Engine | None) -> None:
        self._runner = asyncio.Runner()
        self.profile, self.engine = profile, engine
        self._sandbox: SessionSandbox | None = None
        self._belongs: Callable[[Path], bool] = lambda folder: False

    def attack(self, attack: Attack, *, may_end: bool = False, seconds: float = 60.0) -> None:
        """Attack, and look whether all is as it should be.

        Args:
            attack: Given the sandbox; asserts what it should have come to.
            may_end: Whether it may bring the sandbox down, which then says so.
            seconds: Until the attack must have ended.
        """
        self._runner.run(self._attack(attack, may_end, seconds))

    def processes(self) -> list[str]:
        """Return the command lines of what runs in the sandbox, as this machine sees it."""
        return sorted(processes_where(self._belongs).values())

    def running(self, mark: str) -> list[str]:
        """Return the command lines in the sandbox that hold a mark."""
        return [line for line in self.processes() if mark in line]

    async def gone(self, mark: str) -> None:
        """Wait until nothing with the mark runs: the kernel takes a moment to clean up."""
        await until(lambda: self.running(mark) == [])

    async def _open(self) -> SessionSandbox:
        if self.profile is None or self.engine is None:
            namespaces = await BubblewrapSandbox.create(NamespaceProfile(PROFILE.limits))
            space = (await namespaces.exec(["readlink", "/proc/self/ns/pid"])).stdout.strip()
            self._belongs = lambda folder: os.readlink(folder / "ns/pid") == space
            return namespaces
        prepared = await asyncio.to_thread(prepare, self.engine, self.profile)
        container = await DockerSandbox.create(self.engine, prepared)
        number = (await self.engine.call("inspect_container", container.name))["Id"]
        self._belongs = lambda folder: number in (folder / "cgroup").read_text()
        return container

    async def _attack(self, attack: Attack, may_end: bool, seconds: float) -> None:
        sandbox, before = self._sandbox or await self._open(), memory_of_this_process()
        self._sandbox = None  # until it has proved itself
        try:
            async with asyncio.timeout(seconds):
                await attack(sandbox)
                await probe(sandbox)
                self._sandbox = sandbox
        except SandboxError:
            if not may_end or sandbox.alive:
                raise
        finally:
            if self._sandbox is None:
                await sandbox.close()
        assert memory_of_this_process() - before < 100 * MIB
        if self._sandbox is None:
            assert self.processes() == []
            if self.engine is not None:
                assert sandbox.name not in {item.name for item in await find(self.engine)}

    async def _end(self) -> None:
        if self._sandbox is not None:
            await self._sandbox.close()
        if self.engine is not None:
            assert [item.name for item in await find(self.engine) if item.mine] == []

    def close(self) -> None:
        """End the sandbox, and make sure that nothing of the test is left."""
        self._runner.run(self._end())
        self._runner.close()
        if self.engine is not None:
            self.engine.close()
        assert self.processes() == []


async def probe(sandbox: SessionSandbox) -> None:
    """Expect everything to work."""
    result = await sandbox.exec("echo alive; echo too >&2; exit 7")
    assert (result.returncode, result.stdout, result.stderr) == (7, "alive\n", "too\n")
    assert (await sandbox.python("6 * 7")).stdout == "42\n"
    assert (await sandbox.bash("echo $((6 * 7))")).stdout == "42\n"
    await sandbox.write_file("probe/file", b"\0right\xff")
    assert await sandbox.read_file("probe/file") == b"\0right\xff"


CONTAINER = pytest.param(PROFILE, id="container", marks=pytest.mark.docker)
NAMESPACES = pytest.param(None, id="namespaces", marks=pytest.mark.bubblewrap)
WRITABLE = pytest.param(ROOT, id="root", marks=pytest.mark.docker)
# For attacks that are tried by root in a writable root, too.
AS_ROOT_TOO = pytest.mark.parametrize("arena", [CONTAINER, WRITABLE, NAMESPACES], indirect=True)
IN_CONTAINERS = pytest.mark.parametrize("arena", [CONTAINER, WRITABLE], indirect=True)


@pytest.fixture(scope="module", params=[CONTAINER, NAMESPACES])
def arena(request: pytest.FixtureRequest) -> Iterator[Arena]:
    """A place for attacks."""
    profile: Profile | None = request.param
    arena = Arena(profile, None if profile is None else Engine.connect())
    yield arena
    arena.close()
