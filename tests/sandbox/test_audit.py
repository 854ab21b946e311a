"""Bringing a sandbox to rest, and what was changed in it, whatever ran there."""

from __future__ import annotations

import asyncio

import pytest

from vf.sandbox.audit import Auditable, Change
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.hosting.source import sandbox_source
from vf.sandbox.local import UnsafeLocalSandbox
from vf.sandbox.spec import SandboxSpec

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


def test_changes_are_the_engines_word(engine: Engine) -> None:
    async def check() -> None:
        async with sandbox_source("docker").open(ROOT) as sandbox:
            assert isinstance(sandbox, Auditable)
            before = await sandbox.changes()
            done = await sandbox.exec(
                "rm /usr/bin/cmp; echo 1 >> /etc/profile; touch /new /tmp/none; "
                "mv /usr/bin/diff /usr/bin/find && touch -r /bin/sh /usr/bin/find"
            )
            assert done.ok
            found = {change for change in await sandbox.changes() if change not in before}
            assert {
                Change("deleted", "/usr/bin/cmp"),
                Change("changed", "/etc/profile"),
                Change("added", "/new"),
                Change("changed", "/usr/bin/find"),
                Change("deleted", "/usr/bin/diff"),
            } <= found
            assert not any(change.path.startswith("/tmp/") for change in found)

    asyncio.run(check())


def test_a_sandbox_that_has_ended_has_no_changes(engine: Engine) -> None:
    async def check() -> None:
        async with sandbox_source({"lifetime": 2.0}).open(ROOT) as sandbox:
            assert isinstance(sandbox, Auditable)
            assert (await sandbox.exec("sleep 30")).ended
            with pytest.raises(OSError, match="has ended"):
                await sandbox.end_programs()
            with pytest.raises(OSError, match="has ended"):
                await sandbox.changes()

    asyncio.run(check())


def test_processes_of_this_machine_cannot_be_audited() -> None:
    assert not isinstance(UnsafeLocalSandbox(unsafe_local=True), Auditable)
