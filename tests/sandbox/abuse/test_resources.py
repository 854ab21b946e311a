"""Code that takes all that it can get: processes, memory, disk, and the reader's patience."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from vf.sandbox.container.docker_sandbox import DockerSandbox

from .conftest import AS_ROOT_TOO, IN_CONTAINERS, MIB, Arena

STUBBORN_BOMB = """
import os, time
while True:
    try: os.fork()
    except OSError: time.sleep(0.001)
"""
EAT = "data = []\nwhile True: data.append(bytearray(2**20))"


@AS_ROOT_TOO
def test_a_fork_bomb_ends_with_its_timeout(arena: Arena) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        result = await sandbox.python(STUBBORN_BOMB, timeout=1)
        assert result.timed_out
        assert not result.oom_killed
        await arena.gone("except OSError")

    # On a machine that is busy enough, killing it takes longer than the supervisor waits.
    arena.attack(attack, may_end=True)


@pytest.mark.slow
@AS_ROOT_TOO
def test_a_bomb_of_the_shell_burns_out(arena: Arena) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        line = "exec 2>complaints; vfbomb() { vfbomb | vfbomb & }; vfbomb"
        await sandbox.exec(line, timeout=5)
        for _ in range(10):  # its processes come and go
            await arena.gone("vfbomb")
            await asyncio.sleep(0.02)
        assert b"fork" in await sandbox.read_file("complaints")

    arena.attack(attack)


@AS_ROOT_TOO
def test_a_bomb_left_in_the_background_takes_nothing_but_its_own_sandbox(arena: Arena) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        code = f"import os\nif os.fork(): os._exit(0)\nos.setsid()\n{STUBBORN_BOMB}"
        assert (await sandbox.exec(["python3", "-c", code])).returncode == 0
        # There is no room for another process: that is said, by a result or by the loss of it all.
        for _ in range(5):
            result = await sandbox.exec(["true"], timeout=5)
            assert result.returncode in (0, 126) or result.timed_out or result.ended
        await sandbox.close()

    arena.attack(attack, may_end=True)


@pytest.mark.parametrize("how", ["exec", "python", "bash"])
def test_out_of_memory_is_distinguished_from_a_timeout(arena: Arena, how: str) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        if how == "exec":
            result = await sandbox.exec(["python3", "-c", EAT])
        elif how == "python":
            result = await sandbox.python(EAT)
        else:
            result = await sandbox.bash(f"python3 -c '{EAT}'")
        if arena.profile is None and "MemoryError" in result.stderr:
            return  # without a cgroup, a process's own limit may come before the watch of all
        assert how != "python" or "lost" in result.stderr
        assert result.returncode == 137
        assert not result.timed_out
        assert result.oom_killed

    arena.attack(attack)


def test_a_timeout_is_distinguished_from_being_out_of_memory(arena: Arena) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        result = await sandbox.exec("sleep 30", timeout=0.3)
        assert (result.timed_out, result.oom_killed) == (True, False)
        result = await sandbox.exec("kill -9 $$")
        assert (result.returncode, result.timed_out, result.oom_killed) == (137, False, False)

    arena.attack(attack)


@AS_ROOT_TOO
def test_many_that_eat_memory_at_once_cannot_take_the_supervisor(arena: Arena) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        code = f"import os\nfor _ in range(4): os.fork()\n{EAT}"
        result = await sandbox.exec(["python3", "-c", code], timeout=30)
        assert not result.ok

    arena.attack(attack)


@pytest.mark.parametrize("folder", ["/tmp", "/workspace", "/dev/shm"])
def test_a_full_disk_is_a_failure_and_can_be_emptied(arena: Arena, folder: str) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        result = await sandbox.exec(f"cat /dev/zero > {folder}/full; stat -c %s {folder}/full")
        assert "No space left" in result.stderr
        assert int(result.stdout) <= 64 * MIB
        with pytest.raises(OSError, match="No space left"):
            await sandbox.write_file(f"{folder}/more", b"x" * MIB)
        assert (await sandbox.exec("echo still here")).stdout == "still here\n"
        await sandbox.exec(f"rm {folder}/full")

    arena.attack(attack)


def test_as_many_files_as_there_can_be(arena: Arena) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        result = await sandbox.python(
            "import os, shutil\nos.mkdir('many')\n"
            "try:\n    for n in range(100000): open(f'many/{n}', 'w').close()\n"
            "except OSError as error: print(error.strerror, n < 2000)\n"
            "shutil.rmtree('many')"
        )
        assert result.stdout == "No space left on device True\n"

    arena.attack(attack)


def test_endless_output_is_cut_while_it_runs(arena: Arena) -> None:
    commands: list[tuple[list[str] | str, str]] = [
        (["yes", "a line without an end in sight"], "stdout"),
        ("yes 'a complaint' >&2", "stderr"),
        (["cat", "/dev/zero"], "stdout"),
        ("yes | tr -d '\\n'", "stdout"),
    ]

    async def attack(sandbox: DockerSandbox) -> None:
        results = await asyncio.gather(
            *(sandbox.exec(command, timeout=1, max_output=10_000) for command, _ in commands)
        )
        for result, (_, stream) in zip(results, commands, strict=True):
            assert result.timed_out
            assert result.truncated
            assert "bytes are missing" in getattr(result, stream)
            assert 10_000 <= len(getattr(result, stream)) < 10_200

    arena.attack(attack)


def test_endless_output_of_what_lives_on_is_cut(arena: Arena) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        # What starts an interpreter or a shell is no part of the time that they print for.
        await asyncio.gather(sandbox.python("1"), sandbox.bash("true"))
        for result in await asyncio.gather(
            sandbox.python("while True: print('x' * 1000)", timeout=2),
            sandbox.bash("yes", timeout=2),
        ):
            assert result.timed_out
            assert result.truncated
            assert len(result.stdout) < 200_000

    arena.attack(attack)


@IN_CONTAINERS
def test_nothing_of_it_reaches_the_engines_logs(arena: Arena) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        await sandbox.exec(["head", "-c", "5000000", "/dev/zero"])
        assert arena.engine is not None
        inspected = await arena.engine.call("inspect_container", sandbox.name)
        assert inspected["HostConfig"]["LogConfig"]["Type"] == "none"
        assert inspected["LogPath"] == ""
        info = await arena.engine.call("info")
        folder = Path(info["DockerRootDir"]) / "containers" / inspected["Id"]
        if folder.exists():  # not where the engine is on another machine, or we are not root
            assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) < MIB

    arena.attack(attack)
