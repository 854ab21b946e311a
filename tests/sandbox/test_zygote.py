"""The process from which bubblewrap's sandboxes are forked, and what they share: nothing."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from tests.sandbox.local_box import child_of, mark, numbers_of, running
from tests.waiting import until, wait_until
from vf.runtime.errors import SandboxError
from vf.sandbox.bubblewrap import forks
from vf.sandbox.bubblewrap.bubblewrap_sandbox import BubblewrapSandbox, NamespaceProfile
from vf.sandbox.contract import Limits

MARK = mark(22)
SLEEP = f"sleep\0{MARK}"
NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
LINKS = "import os, sys; print(*(os.readlink(f'/proc/self/ns/{name}') for name in sys.argv[1:]))"
pytestmark = pytest.mark.bubblewrap
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def beside(body: Callable[[BubblewrapSandbox, BubblewrapSandbox], Awaitable[None]]) -> None:
    """Run a coroutine function with two sandboxes of one zygote."""

    async def run() -> None:
        async with await BubblewrapSandbox.create() as one, await BubblewrapSandbox.create() as two:
            assert len(zygotes()) == 1
            await body(one, two)

    asyncio.run(run())


def zygotes() -> list[int]:
    """Return the pids of this process's bubblewraps, of whatever thread they are the children."""
    pids = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            for pid in (task / "children").read_text().split():
                if Path(f"/proc/{pid}/comm").read_text() == "bwrap\n":
                    pids.append(int(pid))
    return pids


async def first_process(box: BubblewrapSandbox) -> int:
    """Return the pid of a sandbox's PID 1 on this machine."""
    space = (await box.exec(["readlink", "/proc/self/ns/pid"])).stdout.strip()
    return next(pid for pid in processes_of(space) if numbers_of(pid)[-1:] == ["1"])


def processes_of(space: str) -> list[int]:
    """Return the pids on this machine of the processes in a PID namespace."""
    pids = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{name}/ns/pid") == space:
                pids.append(int(name))
    return pids


def few_sockets(process: Path) -> set[str]:
    """Return a process's sockets if they are 2 to 6, and none is closed meanwhile; else none."""
    with contextlib.suppress(FileNotFoundError):
        files = {os.readlink(file) for file in (process / "fd").iterdir()}
        if 2 <= len(sockets := {name for name in files if name.startswith("socket:")}) <= 6:
            return sockets
    return set()


def test_two_sandboxes_see_nothing_of_each_other() -> None:
    async def body(one: BubblewrapSandbox, two: BubblewrapSandbox) -> None:
        await one.start(["sleep", MARK])
        await until(lambda: len(running(SLEEP)) == 1)
        await one.python(
            "import socket\n"
            "kept = socket.socket(socket.AF_UNIX); kept.bind('\\0name'); kept.listen()\n"
            "also = socket.create_server(('127.0.0.1', 4000))"
        )
        for path in ("/tmp/file", "/dev/shm/file", "file"):
            await one.write_file(path, "secret")
            assert not (await two.exec(["ls", path])).ok
        seen = (await two.exec("cat /proc/[0-9]*/cmdline")).stdout
        assert MARK not in seen
        assert MARK in (await one.exec("cat /proc/[0-9]*/cmdline")).stdout
        for address in ("socket.AF_UNIX), '\\0name'", "), ('127.0.0.1', 4000)"):
            family, target = address.split("), ")
            code = f"import socket; socket.socket({family}).connect({target})"
            assert "ConnectionRefusedError" in (await two.python(code)).stderr
        spaces = [
            (await box.exec(["python3", "-c", LINKS, *NAMESPACES])).stdout.split()
            for box in (one, two)
        ]
        own = [os.readlink(f"/proc/self/ns/{name}") for name in NAMESPACES]
        assert len({*own, *spaces[0], *spaces[1]}) == 3 * len(NAMESPACES)

    beside(body)


REACH = """
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
def refused(code): return code == -1 and ctypes.get_errno() in (1, 13)
stat = open("/proc/1/stat").read().rpartition(")")[2].split()
assert (stat[1], stat[2]) == ("0", "1"), stat  # no parent in here, and a session of its own
assert sorted(os.listdir("/proc/self/fd"))[:3] == ["0", "1", "2"]
assert len(os.listdir("/proc/self/fd")) == 4
proc = [line.split() for line in open("/proc/self/mountinfo") if line.split()[4] == "/proc"]
assert len(proc) == 1, proc  # the zygote's is not beneath
for call in (
    lambda: libc.umount2(b"/proc", 2), lambda: libc.umount2(b"/proc/keys", 2),
    lambda: libc.mount(b"proc", b"/tmp", b"proc", 0, None), lambda: libc.unshare(0x10000000),
    lambda: libc.mount(None, b"/", None, 32 | 4096, None), lambda: libc.setns(0, 0),
    lambda: libc.ptrace(16, 1, 0, 0),
    lambda: libc.fcntl(os.open("/etc/passwd", 0), 1024, 0),  # a lease keeps others from opening it
):
    assert refused(call()), call
for path in ("/proc/1/ns/pid", "/proc/1/root", "/proc/1/mem", "/proc/1/environ", "/proc/1/fd"):
    try: (os.listdir if path.endswith("fd") else os.open)(path, *([] if "fd" in path else [0]))
    except OSError as error: assert error.errno == 13, (path, error)
    else: raise AssertionError(path)
os.kill(1, signal.SIGKILL)
os.kill(1, signal.SIGSTOP)
print("refused")
"""


def test_nothing_inside_reaches_the_zygote() -> None:
    async def body(one: BubblewrapSandbox, two: BubblewrapSandbox) -> None:
        for _ in range(2):
            result = await one.exec(["python3", "-c", REACH])
            assert (result.stdout, result.stderr) == ("refused\n", "")
        assert (await two.exec("echo on")).stdout == "on\n"

    beside(body)


def test_code_is_an_ordinary_user_who_can_read_etc() -> None:
    async def body(box: BubblewrapSandbox, _: BubblewrapSandbox) -> None:
        said = (await box.exec("id -un; grep -c . /etc/hosts; umask")).stdout
        assert said == "sandbox\n2\n0022\n"
        status = (await box.exec(["cat", "/proc/self/status"])).stdout
        fields = dict(line.split(":\t", 1) for line in status.splitlines())
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            assert int(fields[name], 16) == 0
        assert (fields["NoNewPrivs"], fields["Seccomp"]) == ("1", "2")
        assert fields["Groups"].split() in ([], ["1000"], ["65534"])

    beside(body)


@as_root
def test_descriptors_and_users_are_a_sandboxs_own() -> None:
    async def body(one: BubblewrapSandbox, two: BubblewrapSandbox) -> None:
        first = [Path(f"/proc/{await first_process(box)}") for box in (one, two)]
        # Its connection, and the kernel's diagnosis of sockets; two for each keeper that is ready.
        sockets = [await until(partial(few_sockets, folder)) for folder in first]
        assert not sockets[0] & sockets[1]
        users = [(folder / "uid_map").read_text().split()[1] for folder in first]
        assert len({*users, str(os.getuid())}) == 3

    beside(body)


def test_what_one_sandbox_uses_up_is_left_to_others() -> None:
    code = (
        "import ctypes, socket, subprocess, sys\n"
        "libc, held = ctypes.CDLL(None), 0\n"
        "watch, watches = libc.inotify_init(), 0\n"
        "for number in range(9000):\n"
        "    path = f'/tmp/{number}'; open(path, 'w').close()\n"
        "    watches += libc.inotify_add_watch(watch, path.encode(), 2) >= 0\n"
        "while libc.inotify_init() >= 0: held += 1\n"
        "print(held + 1, watches)\n"
        "ours, theirs = socket.socketpair()\n"
        "try:\n"
        "    while sys.argv[1] == 'root': socket.send_fds(ours, [b'x'], [0] * 100)\n"
        "except OSError: pass\n"
        "kept = []\n"
        "try:\n"
        "    while True: kept.append(subprocess.Popen(['sleep', '1000']))\n"
        "except OSError: print('full', flush=True)\n"
        "kept[0].wait()"
    )

    async def run() -> None:
        small = NamespaceProfile(Limits(pids=32))
        async with await BubblewrapSandbox.create(small) as greedy:
            user = "root" if os.geteuid() == 0 else "other"
            process = await greedy.start(["python3", "-c", code, user])
            text = ""
            async for piece in process:
                text += piece.data.decode() if isinstance(piece.data, bytes) else piece.data
                if "full" in text:
                    break
            assert text.split() == ["16", "8192", "full"]
            async with await BubblewrapSandbox.create(small) as box:
                watch = "import ctypes; print(ctypes.CDLL(None).inotify_init() >= 0)"
                assert (await box.exec(["python3", "-c", watch])).stdout == "True\n"

    asyncio.run(run())


def test_a_zygote_that_was_killed_is_started_again() -> None:
    async def body(one: BubblewrapSandbox, two: BubblewrapSandbox) -> None:
        assert (await one.exec("true")).ok
        (before,) = zygotes()
        os.kill(before, signal.SIGKILL)
        await until(lambda: not (one.alive or two.alive))
        for box in (one, two):  # whether or not code had run in it
            with pytest.raises(SandboxError, match="the process that started it has ended"):
                await box.exec("true")
        async with await BubblewrapSandbox.create() as box:
            assert (await box.exec("echo on")).stdout == "on\n"
            assert before not in zygotes()

    beside(body)


def test_a_zygote_whose_bubblewrap_has_not_noticed_its_end_is_started_again() -> None:
    async def body(one: BubblewrapSandbox, _: BubblewrapSandbox) -> None:
        os.kill(child_of(zygotes()[0]), signal.SIGKILL)
        async with await BubblewrapSandbox.create() as box:
            assert (await box.exec("echo on")).stdout == "on\n"

    beside(body)


def test_a_zygote_that_ends_before_it_serves_is_an_error_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forks, "boot", lambda modules: bytes(4))
    with pytest.raises(SandboxError, match=r"bubblewrap did not start: Traceback(?s:.*)EOFError"):
        asyncio.run(BubblewrapSandbox.create(NamespaceProfile(workdir="/ends")))


LOW = """
import asyncio, resource
from vf.sandbox.bubblewrap.bubblewrap_sandbox import BubblewrapSandbox

async def main():
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (90, most))
    many = [BubblewrapSandbox.create() for _ in range(40)]
    made = await asyncio.gather(*many, return_exceptions=True)
    boxes = [box for box in made if isinstance(box, BubblewrapSandbox)]
    assert 10 < len(boxes) < 40, made
    for box in boxes:
        await box.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    boxes = await asyncio.gather(*(BubblewrapSandbox.create() for _ in range(40)))
    for box in boxes:
        assert (await box.exec("true")).ok
        await box.close()

asyncio.run(main())
"""


def test_few_open_files_are_enough_for_some_and_more_later() -> None:
    done = subprocess.run([sys.executable, "-c", LOW], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_supervisor_that_hangs_is_killed() -> None:
    async def body(one: BubblewrapSandbox, two: BubblewrapSandbox) -> None:
        await one.start(["sleep", MARK])
        await until(lambda: len(running(SLEEP)) == 1)
        os.kill(await first_process(one), signal.SIGSTOP)
        await one.close()
        assert running(SLEEP) == []
        assert (await two.exec("echo on")).stdout == "on\n"

    beside(body)


def test_a_sandbox_whose_loop_has_forgotten_it_ends() -> None:
    async def leave() -> None:
        box = await BubblewrapSandbox.create()
        await box.start(["sleep", MARK])
        await until(lambda: len(running(SLEEP)) == 1)

    asyncio.run(leave())
    gc.collect()
    wait_until(lambda: running(SLEEP) == [])


def test_threads_share_a_zygote_that_outlives_them() -> None:
    profile = NamespaceProfile(workdir="/threads")  # no zygote of another test has it
    answers = []

    async def use() -> None:
        async with await BubblewrapSandbox.create(profile) as box:
            answers.append((await box.exec("pwd")).stdout)

    threads = [threading.Thread(target=lambda: asyncio.run(use())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_until(lambda: len(zygotes()) == 1)
    before = zygotes()
    asyncio.run(use())
    assert (zygotes(), answers) == (before, 4 * ["/threads\n"])


def test_another_workdir_has_a_zygote_of_its_own_while_it_is_used() -> None:
    def at(name: str) -> NamespaceProfile:
        return NamespaceProfile(workdir=f"/work/{name}")

    async def run() -> None:
        async with await BubblewrapSandbox.create(at("a")) as one:
            made = [BubblewrapSandbox.create(at(name)) for name in "bc"]
            boxes = [one, *await asyncio.gather(*made)]
            for name, box in zip("abc", boxes, strict=True):
                assert (await box.exec("pwd; ls /work")).stdout == f"/work/{name}\n{name}\n"
            assert len(zygotes()) == 3
            for box in boxes[1:]:
                await box.close()
            async with await BubblewrapSandbox.create(at("d")):
                await until(lambda: len(zygotes()) == 2)  # of a and d
            assert (await one.exec("echo on")).stdout == "on\n"

    asyncio.run(run())


FORKED = """
import asyncio, os, signal
from vf.sandbox.bubblewrap.bubblewrap_sandbox import BubblewrapSandbox

async def main():
    async with await BubblewrapSandbox.create() as box:
        await box.exec("true")
        if os.fork() == 0:
            signal.pause()
        await box.start(["sleep", "{mark}"])
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""
CHILD = """
import asyncio, os
from vf.sandbox.bubblewrap.bubblewrap_sandbox import BubblewrapSandbox

async def use():
    async with await BubblewrapSandbox.create() as box:
        return (await box.exec("echo on")).stdout

async def main():
    async with await BubblewrapSandbox.create() as box:
        child = os.fork()
        if child == 0:
            asyncio._set_running_loop(None)
            os._exit(asyncio.run(use()) != "on\\n")
        assert os.waitpid(child, 0)[1] == 0
        assert (await box.exec("echo on")).stdout == "on\\n"

asyncio.run(main())
"""


def test_sandboxes_end_with_their_owner_though_it_has_forked() -> None:
    command = [sys.executable, "-c", FORKED.format(mark=MARK)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as owner:
        assert owner.stdout is not None
        try:
            assert owner.stdout.readline() == b"ready\n"
            wait_until(lambda: len(running(SLEEP)) == 1)
            owner.kill()
            wait_until(lambda: running(SLEEP) == [])
        finally:
            os.killpg(owner.pid, signal.SIGKILL)


def test_a_process_that_was_forked_has_a_zygote_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
