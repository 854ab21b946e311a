"""Code that is root in a root that it may change: it owns the image's files, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.docker_sandbox import DockerSandbox
from vf.sandbox.container.doctor import prepare

from .conftest import ROOT, probe

Body = Callable[[DockerSandbox], Awaitable[None]]


def as_root(engine: Engine, body: Body) -> None:
    """Attack in a container of its own: little of it is left afterwards."""

    async def run() -> None:
        prepared = await asyncio.to_thread(prepare, engine, ROOT)
        async with await DockerSandbox.create(engine, prepared, warm=True) as sandbox:
            await body(sandbox)

    asyncio.run(run())


# Whoever is not of our uid belongs to the supervisor. The first lines are those of every attack.
OTHERS = """
import ctypes, fcntl, os, signal, socket, time
def others():
    for name in os.listdir("/proc"):
        if name.isdigit():
            try: status = open(f"/proc/{name}/status").read()
            except OSError: continue
            if f"Uid:\\t{os.getuid()}\\t" not in status: yield int(name)
assert os.getuid() == 0 and len(list(others())) >= 3
"""
SIGNALS = """
for pid in others():
    for number in range(1, 65):
        try: os.kill(pid, number); print("signalled", pid, number)
        except OSError: pass  # some end by themselves
# The kernel lets root's descriptors signal anybody.
here, there = socket.socketpair()
for pid in others():
    for number in (9, 0):
        try: fcntl.fcntl(here, fcntl.F_SETOWN, pid)
        except ProcessLookupError: continue
        try: fcntl.fcntl(here, 10, number); print("chose a signal", number)
        except PermissionError: pass
        fcntl.fcntl(here, fcntl.F_SETFL, os.O_ASYNC)
        there.send(b"x")
        here.recv(1)
time.sleep(0.1)
"""
FILES = """
for pid in others():
    for name, mode in [
        ("mem", "r"), ("mem", "r+"), ("environ", "r"), ("maps", "r"), ("fd/0", "r"), ("fd/1", "w"),
        ("oom_score_adj", "w"), ("coredump_filter", "w"), ("clear_refs", "w"), ("exe", "r"),
        ("root/etc/passwd", "r"), ("cwd/etc/passwd", "r"),
    ]:
        try: open(f"/proc/{pid}/{name}", mode).close(); print("opened", pid, name)
        except OSError: pass
"""
TRACING = """
libc = ctypes.CDLL(None)
data = ctypes.create_string_buffer(64)
class Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
piece = Piece(ctypes.addressof(data), 64)
for pid in others():
    for request in (16, 0x4206):  # PTRACE_ATTACH, PTRACE_SEIZE
        if libc.ptrace(request, pid, 0, 0) == 0: print("traced", pid)
    for call in (310, 311):  # process_vm_readv, process_vm_writev
        if libc.syscall(call, pid, ctypes.byref(piece), 1, ctypes.byref(piece), 1, 0) > 0:
            print("moved memory", pid)
    fd = libc.syscall(434, pid, 0)  # pidfd_open
    if libc.syscall(438, fd, 1, 0) >= 0: print("took a descriptor", pid)  # pidfd_getfd
    if libc.syscall(424, fd, 9, 0, 0) == 0: print("signalled", pid)  # pidfd_send_signal
"""
KIT = """
import shutil, subprocess
for path in ("/.vf/x", "/.vf/lib/x"):
    try: open(path, "w"); print("made", path)
    except OSError: pass
for path in ("/.vf/bin/python3", "/.vf/ld.so"):
    for change in (os.unlink, lambda path: os.chmod(path, 0), lambda path: open(path, "r+")):
        try: change(path); print("changed", path)
        except OSError: pass
try: os.rename("/.vf", "/moved"); print("moved")
except OSError: pass
try: shutil.rmtree("/.vf"); print("removed")
except OSError: pass
for line in ("mount -o remount,rw /.vf", "umount /.vf", "mount --bind /tmp /.vf", "umount -l /proc",
             "mknod /tmp/disk b 8 0", "mknod /tmp/mem c 1 1", "chown 1234 /etc/passwd",
             "chroot / true", "unshare -m true", "nsenter -t 1 -m true",
             "echo 1 > /proc/sys/kernel/panic", "echo b > /proc/sysrq-trigger",
             "su -s /bin/sh nobody -c true", "setpriv --reuid 1234 true"):
    if subprocess.run(line, shell=True, capture_output=True).returncode == 0: print("did", line)
"""


@pytest.mark.parametrize(
    "attack", [SIGNALS, FILES, TRACING, KIT], ids=["signals", "files", "tracing", "kit"]
)
def test_root_reaches_nothing_of_the_supervisor_s(engine: Engine, attack: str) -> None:
    async def body(sandbox: DockerSandbox) -> None:
        assert (await sandbox.python(OTHERS + attack)).stderr == ""
        result = await sandbox.exec(["python3", "-"], input=OTHERS + attack)
        assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
        assert (await sandbox.python("'still there'")).stdout == "'still there'\n"
        await probe(sandbox)

    as_root(engine, body)


def test_what_root_preloads_is_for_its_own_programs(engine: Engine) -> None:
    async def body(sandbox: DockerSandbox) -> None:
        await sandbox.write_file("/etc/ld.so.preload", "/evil.so\n")
        assert "evil.so" in (await sandbox.exec("true")).stderr
        assert await sandbox.read_file("/etc/ld.so.preload") == b"/evil.so\n"
        image = await sandbox.snapshot()
        prepared = await asyncio.to_thread(prepare, engine, replace(ROOT, image=image))
        async with await DockerSandbox.create(engine, prepared) as fork:
            assert "evil.so" in (await fork.exec("true")).stderr
            assert fork._stream.stderr == ""

    as_root(engine, body)


def test_without_any_file_of_the_image_calls_have_results(engine: Engine) -> None:
    async def body(sandbox: DockerSandbox) -> None:
        await sandbox.exec("rm -rf --no-preserve-root / 2>/dev/null", timeout=60)
        assert (await sandbox.exec("true")).returncode == 127
        assert (await sandbox.exec(["ls"], user="nobody")).returncode == 127
        with pytest.raises(FileNotFoundError):
            await sandbox.read_file("/etc/passwd")
        await sandbox.write_file("/etc/passwd", "x")
        assert await sandbox.read_file("/etc/passwd") == b"x"
        assert sandbox.alive

    as_root(engine, body)


def test_pipes_in_place_of_files_keep_nobody_waiting(engine: Engine) -> None:
    async def body(sandbox: DockerSandbox) -> None:
        line = "for f in /dev/null /etc/passwd /etc/group; do rm $f; mkfifo $f; done; rm /bin/sh"
        assert (await sandbox.exec(line)).ok
        async with asyncio.timeout(60):
            assert (await sandbox.exec("true")).returncode == 127
            assert (await sandbox.exec(["id", "-u"], user="nobody")).stdout == "65534\n"
            await sandbox.python("import os; os._exit(0)")
            assert (await sandbox.python("1")).stdout == "1\n"
            with pytest.raises(ValueError, match="regular file"):
                await sandbox.read_file("/dev/null")

    as_root(engine, body)
