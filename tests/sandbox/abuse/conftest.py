"""An arena: attacks on real containers, and what is looked at after each one.

The tests of a file share a container as long as no attack has brought it down; a probe after every
attack finds out. An attack that brings it down is one that ends with SandboxError, and then nothing
of the container may be left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.waiting import until
from vf.runtime.errors import SandboxError
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.docker_sandbox import DockerSandbox
from vf.sandbox.container.doctor import prepare
from vf.sandbox.container.profile import Profile
from vf.sandbox.container.reaper import find
from vf.sandbox.contract import Limits

MIB = 2**20
Attack = Callable[[DockerSandbox], Awaitable[None]]
PROFILE = Profile(
    limits=Limits(
        memory=256 * MIB, workspace=64 * MIB, tmp=16 * MIB, pids=64, files=2000, lifetime=300
    )
)
ROOT = replace(PROFILE, writable=True)  # the code is root, and may change every file


def processes_of(container: str) -> dict[int, str]:
    """Return what runs in a container, as this machine sees it: pid -> command line."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if container in (folder / "cgroup").read_text():
                    line = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(folder.name)] = line.decode("utf-8", "replace").strip()
            except OSError:
                continue  # it ended meanwhile
    return found


def memory_of_this_process() -> int:
    """Return the resident memory, bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


class Arena:
    """One container at a time, and a loop that outlives the tests of a file.

    Attributes:
        profile: How the containers are made.
    """

    def __init__(self, profile: Profile) -> None:
        self._runner = asyncio.Runner()
        self.profile = profile
        self.engine: Engine | None = None
        self._sandbox: DockerSandbox | None = None
        self.container = ""

    def attack(self, attack: Attack, *, may_end: bool = False, seconds: float = 60.0) -> None:
        """Attack, and look whether all is as it should be.

        Args:
            attack: Given the sandbox; asserts what it should have come to.
            may_end: Whether it may bring the sandbox down, which then says so.
            seconds: Until the attack must have ended.
        """
        self._runner.run(self._attack(attack, may_end, seconds))

    def processes(self) -> list[str]:
        """Return the command lines of what runs in the container, as this machine sees it."""
        return sorted(processes_of(self.container).values())

    def running(self, mark: str) -> list[str]:
        """Return the command lines in the container that hold a mark."""
        return [line for line in self.processes() if mark in line]

    async def gone(self, mark: str) -> None:
        """Wait until nothing with the mark runs: the kernel takes a moment to clean up."""
        await until(lambda: self.running(mark) == [])

    async def _attack(self, attack: Attack, may_end: bool, seconds: float) -> None:
        assert self.engine is not None
        if self._sandbox is None:
            prepared = await asyncio.to_thread(prepare, self.engine, self.profile)
            self._sandbox = await DockerSandbox.create(self.engine, prepared)
            inspected = await self.engine.call("inspect_container", self._sandbox.name)
            self.container = inspected["Id"]
        sandbox, before = self._sandbox, memory_of_this_process()
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
            assert processes_of(self.container) == {}
            assert sandbox.name not in {item.name for item in await find(self.engine)}

    async def _end(self) -> None:
        if self._sandbox is not None:
            await self._sandbox.close()
        if self.engine is not None:
            assert [item.name for item in await find(self.engine) if item.mine] == []

    def close(self) -> None:
        """End the container, and make sure that nothing of the test is left."""
        self._runner.run(self._end())
        self._runner.close()
        if self.engine is not None:
            self.engine.close()
        if self.container:
            assert processes_of(self.container) == {}


async def probe(sandbox: DockerSandbox) -> None:
    """Expect everything to work."""
    result = await sandbox.exec("echo alive; echo too >&2; exit 7")
    assert (result.returncode, result.stdout, result.stderr) == (7, "alive\n", "too\n")
    assert (await sandbox.python("6 * 7")).stdout == "42\n"
    assert (await sandbox.bash("echo $((6 * 7))")).stdout == "42\n"
    await sandbox.write_file("probe/file", b"\0right\xff")
    assert await sandbox.read_file("probe/file") == b"\0right\xff"


# For files whose attacks are tried by root in a writable root, too.
AS_ROOT_TOO = pytest.mark.parametrize(
    "_arena", [PROFILE, ROOT], indirect=True, ids=["user", "root"]
)


@pytest.fixture(scope="module")
def _arena(request: pytest.FixtureRequest) -> Iterator[Arena]:
    arena = Arena(getattr(request, "param", PROFILE))
    yield arena
    arena.close()


@pytest.fixture
def arena(engine: Engine, _arena: Arena) -> Arena:
    """A place for attacks; the test is skipped where no container can be had."""
    if _arena.engine is None:
        _arena.engine = Engine.connect()
    return _arena
