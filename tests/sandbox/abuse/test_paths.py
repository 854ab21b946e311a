"""Paths that are not what they seem: nothing but regular files of the model's user is read."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from vf.sandbox.container.docker_sandbox import DockerSandbox

from .conftest import MIB, Arena

SWAP = """
import os
open('a-file', 'w').write('harmless ' * 1000)
while True:
    os.symlink('/etc/shadow', 'new'); os.rename('new', 'swapped')
    os.symlink('a-file', 'new'); os.rename('new', 'swapped')
    os.symlink('/dev/zero', 'new'); os.rename('new', 'swapped')
    os.mkfifo('new'); os.rename('new', 'swapped')
"""


def test_a_write_into_a_fifo_or_a_device_does_not_wait(arena: Arena) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        await sandbox.exec("rm -f pipe; mkfifo pipe")
        async with asyncio.timeout(60):
            for path in ("pipe", "/dev/full", "/dev/null"):
                with contextlib.suppress(OSError, ValueError):
                    await sandbox.write_file(path, b"x" * MIB)
        assert (await sandbox.exec("test -c /dev/full && test -c /dev/null")).returncode == 0

    arena.attack(attack)


@pytest.mark.parametrize(
    "path",
    [
        "/proc/1/environ",
        "/proc/1/mem",
        "/proc/1/fd/1",
        "/proc/kcore",
        "/proc/sysrq-trigger",
        "/etc/shadow",
        "shadow",
        "../etc/shadow",
        "../../../../../../etc/shadow",
        "a/../../etc/shadow",
        "loop",
    ],
)
def test_what_the_models_user_may_not_read_cannot_be_read(arena: Arena, path: str) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        await sandbox.exec("mkdir -p a; ln -sfn /etc/shadow shadow; ln -sfn loop loop")
        with pytest.raises((OSError, ValueError)):
            await sandbox.read_file(path)
        assert not (await sandbox.exec(["cat", path])).ok

    arena.attack(attack)


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../etc/vf-planted",
        "/vf-planted",
        "/usr/bin/vf-planted",
        "/proc/1/oom_score_adj",
        "/proc/sys/kernel/core_pattern",
        "/proc/sysrq-trigger",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory.max",
        "to-passwd",
        "to-folder/planted",
    ],
)
def test_nothing_of_the_image_or_the_kernel_can_be_written(arena: Arena, path: str) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        await sandbox.exec("ln -sfn /etc/passwd to-passwd; ln -sfn /etc to-folder")
        before = (await sandbox.exec(["cat", "/etc/passwd"])).stdout
        with pytest.raises(OSError, match=r"Permission denied|Read-only|No such file"):
            await sandbox.write_file(path, b"planted")
        assert (await sandbox.exec(["cat", "/etc/passwd"])).stdout == before

    arena.attack(attack)


def test_a_link_that_is_swapped_during_the_read_wins_nothing(arena: Arena) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        swapping = asyncio.create_task(sandbox.exec(["python3", "-c", SWAP], timeout=40))
        harmless = b"harmless " * 1000
        seen: list[bool | None] = []
        while True not in seen or len(seen) < 20:
            assert not swapping.done()
            try:
                seen.append(await sandbox.read_file("swapped") == harmless)
            except (OSError, ValueError):
                seen.append(None)
            with contextlib.suppress(OSError, ValueError):
                await sandbox.write_file("swapped", b"harmless " * 1000)
        swapping.cancel()
        assert False not in seen

    arena.attack(attack)


@pytest.mark.parametrize("program", ["/bin/sh", "/usr/bin/python3", "/usr/bin/bash"])
def test_no_program_of_the_image_can_be_replaced(arena: Arena, program: str) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        fake = "#!/usr/bin/env true\n"
        with pytest.raises(OSError, match=r"Permission denied|Read-only"):
            await sandbox.write_file(program, fake)
        line = f"cp /usr/bin/true $(readlink -f {program}) || mv {program} /tmp || rm -f {program}"
        assert not (await sandbox.exec(line)).ok

    arena.attack(attack)


def test_programs_of_the_same_name_first_on_the_path_change_nothing_else(arena: Arena) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        for name in ("sh", "bash", "python3", "sleep"):
            await sandbox.write_file(f"bin/{name}", "#!/bin/sh\necho caught\n")
        await sandbox.exec("chmod +x bin/*; echo 'echo caught' > .profile; cp .profile .bashrc")
        await sandbox.write_file("sitecustomize.py", "print('caught')")
        await sandbox.write_file("json.py", "print('caught')")
        result = await sandbox.exec("echo safe", env={"ENV": "/workspace/.profile"})
        assert result.stdout == "safe\n"
        await sandbox.bash("exit 1")
        await sandbox.python("import os; os._exit(1)")
        assert (await sandbox.bash("echo safe")).stdout == "safe\n"
        assert (await sandbox.python("print('safe')")).stdout == "safe\n"
        await sandbox.exec("rm -r bin .profile .bashrc *.py")

    arena.attack(attack)


def test_a_deep_or_endless_path_is_an_error(arena: Arena) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        with pytest.raises(OSError, match=r"File name too long"):
            await sandbox.write_file("x" * 5000, b"")
        with pytest.raises(FileNotFoundError):
            await sandbox.read_file("y/" * 5000)
        for path in ("", "nul\0l"):
            with pytest.raises((ValueError, OSError)):
                await sandbox.read_file(path)

    arena.attack(attack)
