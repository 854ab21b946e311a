"""Stopping all programs of a sandbox, and copying its trees, whatever ran there."""

from __future__ import annotations

import asyncio
import io
import os
import tempfile
from functools import partial

import pytest

from vf.sandbox.audit import Auditable
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.hosting.source import sandbox_source
from vf.sandbox.local import UnsafeLocalSandbox
from vf.sandbox.spec import SandboxSpec
from vf.sandbox.trees import Tree, read_pieces

ROOT = SandboxSpec(image="vf-sandbox:latest", writable=True, user="0", workdir="/")
HIDDEN = "setsid sh -c 'while :; do sleep 0.05; done' >/dev/null 2>&1 & setsid setsid sleep 99 &"


async def running(sandbox: Auditable, user: str | None = None) -> int:
    count = "ls -d /proc/[0-9]* | wc -l"
    return int((await sandbox.exec(count, user=user)).stdout)  # type: ignore[attr-defined]


def test_everything_that_was_left_running_ends_and_work_can_go_on(engine: Engine) -> None:
    async def check() -> None:
        async with sandbox_source("docker").open(ROOT) as sandbox:
            assert isinstance(sandbox, Auditable)
            before = await running(sandbox)
            await sandbox.bash(f"x=1; {HIDDEN}")
            await sandbox.exec(HIDDEN)
            await sandbox.exec(HIDDEN, user="1234")
            background = await sandbox.start("sleep 99")
            call = asyncio.ensure_future(sandbox.exec("sleep 99", timeout=60.0))
            for _ in range(1000):
                if await running(sandbox) >= before + 8:
                    break
            await sandbox.end_programs()
            assert await running(sandbox) <= before
            assert (await call).returncode == 137
            assert (await background.wait(timeout=5.0)).returncode == 137
            await sandbox.end_programs()
            after = await sandbox.bash("echo ${x:-gone}")
            assert (after.stdout, "state is lost" in after.stderr) == ("gone\n", True)
            assert (await sandbox.python("1 + 1")).stdout == "2\n"

    asyncio.run(check())


def test_what_replaces_a_program_that_has_ended_is_not_waited_for() -> None:
    """Ending so many takes longer than the start of the next process that waits for a program."""
    many = "for i in $(seq 60); do sleep 99 & done"

    async def check() -> None:
        async with UnsafeLocalSandbox(unsafe_local=True) as sandbox:
            for _ in range(5):
                await sandbox.exec(many)
                await sandbox.start(f"{many}; wait")
                await sandbox.end_programs()

    asyncio.run(check())


def test_a_fork_bomb_ends(engine: Engine) -> None:
    async def check() -> None:
        async with sandbox_source("docker").open(ROOT) as sandbox:
            assert isinstance(sandbox, Auditable)
            await sandbox.exec("b() { b | b & }; b", timeout=1.0)
            await sandbox.end_programs()
            assert (await sandbox.exec("echo fine")).stdout == "fine\n"

    asyncio.run(check())


LEAVE = (
    "mkdir -p /work/inner && cd /work && echo one > a && ln -s /etc link && mkfifo pipe && "
    "touch -d @1 a && echo x > inner/$(printf '\\377') && chmod 000 inner a"
)


def test_trees_are_copied_by_the_engine_with_everything_that_they_have(engine: Engine) -> None:
    async def tree(sandbox: Auditable, path: str) -> Tree:
        under = path.rpartition("/")[0]
        return await sandbox.read_tree(path, partial(read_pieces, under=under, max_bytes=2**30))

    async def check() -> None:
        async with (
            sandbox_source("docker").open(ROOT) as one,
            sandbox_source("docker").open(ROOT) as other,
        ):
            assert isinstance(one, Auditable)
            assert isinstance(other, Auditable)
            assert (await one.exec(["bash", "-c", LEAVE])).ok
            found = await tree(one, "/work")
            name = os.fsdecode(b"/work/inner/\xff")
            assert set(found) == {
                "/work",
                "/work/a",
                "/work/inner",
                "/work/link",
                "/work/pipe",
                name,
            }
            with tempfile.TemporaryFile() as file:
                await one.read_tree("/work", lambda pieces: file.writelines(pieces))
                file.seek(0)
                await other.exec("mkdir /work; mkdir /work/a")
                await other.write_tree(file)
            assert await tree(other, "/work") == found
            assert set(found) <= set(await tree(other, "/"))
            await other.remove([name, "/work/a", "/nothing"])
            left = set(found) - {name, "/work/a"}
            assert set(await tree(other, "/work")) == left
            with pytest.raises(FileNotFoundError):
                await tree(other, "/nothing")
            await other.exec("mkdir -p /tmp/a/b; touch /dev/shm/c")
            await other.exec("mkdir -m 700 /tmp/d; touch /tmp/d/e; chmod 000 /tmp/d", user="1234")
            await other.remove(["/tmp", "/dev/shm"])
            shown = await other.exec("ls -A /tmp /dev/shm; stat -c %a /tmp /dev/shm")
            assert shown.stdout.split() == ["/dev/shm:", "/tmp:", "d", "1777", "1777"]

    asyncio.run(check())


def test_a_sandbox_that_has_ended_has_no_trees(engine: Engine) -> None:
    async def check() -> None:
        async with sandbox_source({"backend": "docker", "lifetime": 2.0}).open(ROOT) as sandbox:
            assert isinstance(sandbox, Auditable)
            assert (await sandbox.exec("sleep 30")).ended
            with pytest.raises(OSError, match="has ended"):
                await sandbox.end_programs()
            with pytest.raises(OSError, match="has ended"):
                await sandbox.read_tree("/etc", list)
            with pytest.raises(OSError, match="has ended"):
                await sandbox.write_tree(io.BytesIO(bytes(10240)))
            with pytest.raises(OSError, match="has ended"):
                await sandbox.remove(["/etc/hosts"])

    asyncio.run(check())


DEEP = """python3 -c '
import os
for _ in range(20):
    os.mkdir("d" * 250)
    os.chdir("d" * 250)
'"""


def test_a_root_that_cannot_be_measured_ends(engine: Engine) -> None:
    async def check() -> None:
        async with sandbox_source("docker").open(ROOT) as sandbox:
            result = await sandbox.exec(f"cd /root && {DEEP} && sleep 60", timeout=60)
            assert result.ended
            assert "cannot be measured" in result.stderr

    asyncio.run(check())


def test_processes_of_this_machine_cannot_be_audited() -> None:
    assert not isinstance(UnsafeLocalSandbox(unsafe_local=True), Auditable)
