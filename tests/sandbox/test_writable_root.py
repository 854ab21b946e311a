"""A root that can be written to: how much, and what is kept of it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vf.runtime.errors import SandboxError
from vf.sandbox.boot import source_of
from vf.sandbox.bounds import Bounds
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.docker_sandbox import DockerSandbox
from vf.sandbox.container.doctor import prepare
from vf.sandbox.container.hardening import Profile
from vf.sandbox.container.reaper import PREFIX, this_process
from vf.sandbox.container.snapshot import REPOSITORY, reap_snapshots
from vf.sandbox.contract import Limits
from vf.sandbox.hosting.host import Host
from vf.sandbox.images.builds import Images
from vf.sandbox.spec import SandboxSpec

MIB = 2**20
LIMITS = Limits(memory=192 * MIB, workspace=16 * MIB, tmp=16 * MIB, disk=32 * MIB, lifetime=300)
ROOT = Profile(limits=LIMITS, writable=True)
GROW = "for i in $(seq 20); do head -c 8000000 /dev/zero > /var/tmp/$i; done; sleep 60"
# Files that the engine makes lie outside of the root, on the host's disk.
GROW_MADE = "for f in hostname hosts; do head -c 30000000 /dev/zero > /etc/$f; done; sleep 60"
# A deleted file takes its room until it is closed.
GROW_DELETED = "exec 7> /var/tmp/a 8> /var/tmp/b; rm /var/tmp/?; yes | head -c 20000000 >&7; "
GROW_DELETED += "yes | head -c 20000000 >&8; sleep 60"


@asynccontextmanager
async def opened(engine: Engine, profile: Profile = ROOT) -> AsyncIterator[DockerSandbox]:
    prepared = await asyncio.to_thread(prepare, engine, profile)
    async with await DockerSandbox.create(engine, prepared) as sandbox:
        yield sandbox


def mine(engine: Engine) -> set[str]:
    """Return the ids of this process's containers."""
    labels = {"label": f"{PREFIX}run={this_process().run}"}
    return {item["Id"] for item in engine.call_now("containers", all=True, filters=labels)}


def snapshots(engine: Engine) -> set[str]:
    found = engine.call_now("images", name=REPOSITORY)
    return {name for item in found for name in item["RepoTags"] or ()}


@pytest.mark.parametrize(
    ("code", "user"),
    [(GROW, "0"), (GROW_MADE, "0"), (GROW_DELETED, "0"), (GROW_DELETED, "1234")],
)
def test_what_outgrows_the_disk_ends_the_sandbox_and_is_scored(
    engine: Engine, code: str, user: str
) -> None:
    async def run() -> None:
        async with opened(engine) as sandbox:
            result = await sandbox.exec(code, timeout=60, user=user)
            assert (result.ended, result.ok) == (True, False)
            assert "ended through what ran in it" in result.stderr
            assert f"more than disk = {32 * MIB}" in result.stderr
            assert result.duration < 20
            assert (await sandbox.exec("true")).ended
            with pytest.raises(OSError, match="ended through"):
                await sandbox.snapshot()

    asyncio.run(run())


def test_a_container_without_a_name_does_not_end_the_watch(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Docker lists one that it lost halfway, when it was killed."""
    call = engine.call

    async def lists_another(method: str, *args: Any, **kwargs: Any) -> Any:
        answer = await call(method, *args, **kwargs)
        nameless = [{"Id": "1", "Names": None}, {"Id": "2", "Names": []}]
        return [*nameless, *answer] if method == "containers" else answer

    async def run() -> None:
        monkeypatch.setattr(engine, "call", lists_another)
        async with opened(engine) as sandbox:
            assert (await sandbox.exec(GROW, timeout=60)).ended

    asyncio.run(run())


def test_within_the_disk_all_is_well_and_no_file_outgrows_it(engine: Engine) -> None:
    async def run() -> None:
        async with opened(engine) as sandbox:
            result = await sandbox.exec("head -c 40000000 /dev/zero >/var/tmp/f")
            assert result.returncode == 128 + signal.SIGXFSZ
            await sandbox.exec("rm /var/tmp/f")
            with pytest.raises(OSError, match="File too large"):
                await sandbox.write_file("/big", b"x" * 33 * MIB)
            assert (await sandbox.exec("head -c 9000000 /dev/zero >/var/tmp/f; sleep 1.5")).ok
            in_memory = "exec 7>/dev/shm/f; rm /dev/shm/f; yes | head -c 15000000 >&7; sleep 1.5"
            assert (await sandbox.exec(f"yes | head -c 9000000 >/var/tmp/f; {in_memory}")).ok

    asyncio.run(run())


REPLACE_DEVICES = """
for name in null zero urandom fd stdin; do rm -f /dev/$name; mkfifo /dev/$name; done
echo x > /dev/foo; ln -sf /dev/zero /dev/null
ls -l /dev/null /dev/urandom /dev/fd | cut -c 1 | tr -d '\\n'; ls /dev/foo; cat < /dev/null
echo 1 > /dev/null; echo 1 > /dev/shm/a && python3 -c 'import os; os.close(os.openpty()[0])'
"""


def test_user_0_cannot_replace_a_device(engine: Engine) -> None:
    async def run() -> None:
        async with opened(engine) as sandbox:
            done = await sandbox.exec(REPLACE_DEVICES, user="0", timeout=30)
            assert (done.returncode, done.stdout) == (0, "lcc")

    asyncio.run(run())


def test_a_state_can_be_kept_and_forked(engine: Engine) -> None:
    async def run() -> None:
        given = replace(ROOT, env={"GREETING": "hi", "LD_PRELOAD": ""}, workdir="/work")
        async with opened(engine, given) as sandbox:
            await sandbox.exec("echo first > f; echo x > /tmp/g; rm /etc/passwd; rm -r /usr/share")
            image = await sandbox.snapshot()
            await sandbox.exec("echo second > f")
            with pytest.raises(ValueError, match="no user 'nobody'"):
                async with opened(engine, Profile(image, LIMITS, writable=True)) as fork:
                    await fork.exec("true", user="nobody")
        for profile in (Profile(image, LIMITS, writable=True), replace(ROOT, image=image)):
            async with opened(engine, profile) as fork:
                shown = await fork.exec("pwd; cat f; echo $GREETING; id -u; ls /tmp /usr/share")
                assert shown.stdout == "/work\nfirst\nhi\n0\n/tmp:\n"
                await fork.exec("echo third > f")
                assert await fork.snapshot() != image
        with pytest.raises(SandboxError, match="closed"):
            await sandbox.snapshot()

    asyncio.run(run())


DAMAGE = {
    "no user any more": "rm /etc/passwd",
    "a FIFO, which an engine would wait for": "rm /etc/group; mkfifo /etc/group",
    "a FIFO behind links": "mkfifo /f; ln -s f /g; rm /etc/passwd; ln -s ../g /etc/passwd",
    "a link to itself": "rm /etc/passwd; ln -s passwd /etc/passwd",
}


@pytest.mark.parametrize("command", DAMAGE.values(), ids=DAMAGE)
def test_what_is_opened_from_a_damaged_snapshot_has_ended(
    engine: Engine, tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the doing of what ran before, and found out once."""
    create, tried = DockerSandbox.create, list[str]()

    async def counted(engine: Engine, profile: Profile, **how: Any) -> DockerSandbox:
        tried.append(profile.image)
        return await create(engine, profile, **how)

    async def run() -> None:
        async with opened(engine, replace(ROOT, user="nobody")) as sandbox:
            assert (await sandbox.exec(command, user="root")).ok
            image = await sandbox.snapshot()
        monkeypatch.setattr(DockerSandbox, "create", counted)
        host = Host(engine, ROOT, SandboxSpec(), Bounds(), Images(engine, folder=tmp_path))
        try:
            for _ in range(2):
                made = len(mine(engine))
                async with host.open(SandboxSpec(image=image)) as fork:
                    result = await fork.exec("true")
                    assert (result.ended, result.returncode) == (True, 137)
                    assert "ended through what ran before in it" in result.stderr
                    with pytest.raises(FileNotFoundError, match="does not start"):
                        await fork.read_file("/f")
                    for refused in (fork.write_file("f", ""), fork.snapshot()):
                        with pytest.raises(OSError, match="does not start"):
                            await refused
                assert len(mine(engine)) == made
                assert len(tried) == 1
        finally:
            await host.close()

    asyncio.run(run())


def test_a_snapshot_is_not_blamed_for_an_engine_that_starts_nothing(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with opened(engine) as sandbox:
            image = await sandbox.snapshot()
        prepared = await asyncio.to_thread(prepare, engine, replace(ROOT, image=image))
        with monkeypatch.context() as patch:
            patch.setattr("vf.sandbox.container.docker_sandbox.START_TIMEOUT", 0.001)
            with pytest.raises(SandboxError, match="did not answer"):
                await DockerSandbox.create(engine, prepared)
        async with await DockerSandbox.create(engine, prepared) as fork:
            assert (await fork.exec("true")).ok

    asyncio.run(run())


def test_a_kit_that_was_pruned_is_collected_again(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A kit of its own: others use the usual one meanwhile.
    script = source_of("inside/collect.py") + f"# {os.getpid()}\n"
    monkeypatch.setattr("vf.sandbox.container.kit.source_of", lambda file: script)

    async def run() -> None:
        prepared = await asyncio.to_thread(prepare, engine, ROOT)
        assert prepared.entry is not None
        volume = prepared.entry.kit
        try:
            await engine.call("remove_volume", volume)
            async with await DockerSandbox.create(engine, prepared) as sandbox:
                assert (await sandbox.exec("echo hi")).stdout == "hi\n"
        finally:
            await engine.call("remove_volume", volume, force=True)

    asyncio.run(run())


def test_a_read_only_root_has_no_state_to_keep(engine: Engine) -> None:
    async def run() -> None:
        async with opened(engine, Profile(limits=LIMITS)) as sandbox:
            with pytest.raises(NotImplementedError, match="not writable"):
                await sandbox.snapshot()

    asyncio.run(run())


TAKE = """
import asyncio, os, sys
from tests.sandbox.test_writable_root import opened
from vf.sandbox.boot import source_of
from vf.sandbox.container.docker_engine import Engine

async def main():
    async with opened(Engine.connect()) as sandbox:
        print(await sandbox.snapshot(), flush=True)
asyncio.run(main())
if sys.argv[1] == "killed":
    os.kill(os.getpid(), 9)
"""


@pytest.mark.slow
def test_snapshots_go_with_their_process(engine: Engine) -> None:
    def take(how: str) -> str:
        command = [sys.executable, "-c", TAKE, how]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    ended, killed = take("ended"), take("killed")
    assert ended.startswith("vf-snapshot:")
    assert ended not in snapshots(engine)
    assert killed in snapshots(engine)
    # Labelled as the snapshot of a dead process, but another's image.
    engine.call_now("tag", killed, "vf-test-root-other", "1")
    try:
        asyncio.run(reap_snapshots(engine))
        assert killed not in snapshots(engine)
        assert engine.call_now("inspect_image", "vf-test-root-other:1")
    finally:
        engine.call_now("remove_image", "vf-test-root-other:1", force=True)
