"""Sandboxes of namespaces: what only they have. Contract and attacks are tested elsewhere."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import TypeVar

import pytest

from tests.sandbox.local_box import mark, running
from tests.waiting import until, wait_until
from vf.runtime.errors import ConfigError
from vf.sandbox.bubblewrap import system
from vf.sandbox.bubblewrap.bubblewrap_sandbox import BubblewrapSandbox, NamespaceProfile
from vf.sandbox.commands.sandbox import main
from vf.sandbox.contract import Limits
from vf.sandbox.hosting.source import open_sandbox, sandbox_source
from vf.sandbox.spec import Build, SandboxSpec

T = TypeVar("T")
MARK = mark(21)
SLEEP = f"sleep\0{MARK}"
needs_bubblewrap = pytest.mark.bubblewrap


def inside(
    body: Callable[[BubblewrapSandbox], Awaitable[T]], profile: NamespaceProfile | None = None
) -> T:
    async def run() -> T:
        async with await BubblewrapSandbox.create(profile) as box:
            return await body(box)

    return asyncio.run(run())


OWNER = """
import asyncio, sys
import vf

async def main():
    async with vf.open_sandbox("bubblewrap") as box:
        await box.exec("(setsid sh -c 'setsid sleep {mark} & sleep {mark}' &)")
        await box.start("sleep {mark}")
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@needs_bubblewrap
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_everything_ends_with_its_owner(number: signal.Signals) -> None:
    command = [sys.executable, "-c", OWNER.format(mark=MARK)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as owner:
        assert owner.stdout is not None
        try:
            assert owner.stdout.readline() == b"ready\n"
            wait_until(lambda: len(running(SLEEP)) == 3)
            owner.send_signal(number)
            owner.wait()
        finally:
            owner.kill()
    wait_until(lambda: running(SLEEP) == [])


@needs_bubblewrap
def test_a_loop_that_ends_leaves_nothing() -> None:
    async def leave() -> None:
        source = sandbox_source({"backend": "bubblewrap", "pool": 2})
        await source.start()
        stack = source.open()
        box = await stack.__aenter__()
        await box.start(["sleep", MARK])

    asyncio.run(leave())
    assert running(SLEEP) == []


@needs_bubblewrap
def test_a_program_whose_keeper_was_killed_ends_with_the_others() -> None:
    async def body(box: BubblewrapSandbox) -> None:
        # It kills the keeper once the call has its answer: what was kept is an orphan then.
        code = (
            "import os, subprocess\n"
            f"subprocess.Popen(['sleep', '{MARK}'], start_new_session=True)\n"
            "keeper = os.getppid()\n"
            "if not os.fork():\n"
            "    os.setsid()\n"
            "    [os.close(fd) for fd in range(3)]\n"
            "    while not os.path.exists('/tmp/answered'): pass\n"
            "    os.kill(keeper, 9)"
        )
        assert (await box.exec(["python3", "-c", code])).returncode == 0
        assert (await box.exec("touch /tmp/answered")).ok
        await until(lambda: not running(f"'{MARK}'"))
        assert len(running(SLEEP)) == 1
        await box.end_programs()
        assert running(SLEEP) == []
        assert (await box.exec("echo on")).stdout == "on\n"

    inside(body)


@needs_bubblewrap
def test_nothing_of_this_machine_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_API_KEY", "sk-secret")
    (tmp_path / "secret").write_text("sk-secret")
    tmp_path.chmod(0o755)

    async def body(box: BubblewrapSandbox) -> None:
        seen = (await box.exec("env; cat /proc/*/environ /proc/*/cmdline; ls /; ls /etc")).stdout
        assert "sk-secret" not in seen
        names = set(seen.splitlines())
        hidden = {"home", "root", "run", "var", "opt", "mnt", "srv", "shadow", "ssh"}
        assert names & hidden <= {Path(sys.base_prefix).parts[1]}  # that folder alone is shown
        for path in (tmp_path / "secret", Path.home(), Path("/etc/shadow"), Path("/run"), __file__):
            assert not (await box.exec(["ls", str(path)])).ok

    inside(body)


@needs_bubblewrap
def test_memory_is_what_processes_and_files_take_together() -> None:
    limits = Limits(memory=192 * 2**20, workspace=96 * 2**20, tmp=16 * 2**20)

    async def body(box: BubblewrapSandbox) -> None:
        assert (await box.exec("head -c 90000000 /dev/zero > file")).ok
        eat = ["python3", "-c", "data = bytearray(150 * 2**20)\nwhile True: pass"]
        result = await box.exec(eat, timeout=60)
        assert (result.returncode, result.oom_killed, result.timed_out) == (137, True, False)
        assert (await box.exec("rm file; echo on")).stdout == "on\n"

    inside(body, NamespaceProfile(limits))


@needs_bubblewrap
@pytest.mark.parametrize(
    "call", ["memfd_create", "shmget", "msgget", "semget", "mq_open", "vmsplice"]
)
def test_memory_that_no_process_maps_cannot_be_had(call: str) -> None:
    calls = {
        "memfd_create": "libc.memfd_create(b'm', 0)",
        "shmget": "libc.shmget(0, 4096, 0o1600)",
        "msgget": "libc.msgget(0, 0o1600)",
        "semget": "libc.semget(0, 1, 0o1600)",
        "mq_open": "libc.mq_open(b'/q', os.O_CREAT | os.O_RDWR, 0o600, None)",
        "vmsplice": "libc.vmsplice(os.pipe()[1], None, 0, 0)",
    }
    code = f"import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\nprint({calls[call]})"

    async def body(box: BubblewrapSandbox) -> None:
        for result in (await box.exec(["python3", "-c", code]), await box.python(code)):
            assert result.stdout == "-1\n", result

    inside(body)


FILL = """
import socket, sys
server, kept = socket.create_server(("127.0.0.1", 0)), []
for _ in range(240 if sys.argv[1] == "unix" else 120):
    if sys.argv[1] == "unix":
        sends, reads = socket.socketpair()
    else:
        sends = socket.create_connection(server.getsockname())
        reads = server.accept()[0] if sys.argv[1] == "tcp" else None
    sends.setblocking(False)
    try:
        while True:
            sends.send(bytes(4096))
    except BlockingIOError:
        kept += [sends, reads]
print("held all", flush=True)
while True: pass
"""


@needs_bubblewrap
@pytest.mark.parametrize("kind", ["tcp", "unaccepted", "unix"])
def test_what_sockets_hold_counts_as_memory(kind: str) -> None:
    async def body(box: BubblewrapSandbox) -> None:
        result = await box.exec(["python3", "-c", FILL, kind], timeout=60)
        assert (result.returncode, result.oom_killed) == (137, True)
        assert (await box.exec("echo on")).stdout == "on\n"

    inside(body, NamespaceProfile(Limits(memory=56 * 2**20, workspace=2**20, tmp=2**20)))


@needs_bubblewrap
def test_a_process_without_its_first_thread_counts_and_ends() -> None:
    code = (
        "import ctypes, os, threading\n"
        "def work():\n"
        "    data = bytearray({size})\n"
        "    while True: pass\n"
        "threading.Thread(target=work).start()\n"
        "SYS_exit = 60 if os.uname().machine == 'x86_64' else 93\n"
        "ctypes.CDLL(None).syscall(SYS_exit, 0)"
    )

    async def body(box: BubblewrapSandbox) -> None:
        large = ["python3", "-c", code.format(size=300 * 2**20)]
        assert (await box.exec(large, timeout=60)).oom_killed
        assert (await box.exec(["python3", "-c", code.format(size=1)], timeout=2)).timed_out
        assert (await box.exec("echo on")).stdout == "on\n"

    inside(body, NamespaceProfile(Limits(memory=192 * 2**20, workspace=2**20, tmp=2**20)))


@needs_bubblewrap
def test_descriptors_under_way_leave_some_to_whoever_has_the_same_user_outside() -> None:
    code = (
        "import socket\n"
        "ours, theirs = socket.socketpair()\n"
        "count = 0\n"
        "try:\n"
        "    while count < 2000:\n"
        "        socket.send_fds(ours, [b'x'], [0] * 100)\n"
        "        count += 100\n"
        "except OSError: pass\n"
        "print(count)"
    )

    async def body(box: BubblewrapSandbox) -> None:
        count = int((await box.exec(["python3", "-c", code])).stdout)
        assert 0 < count < 1000  # what a process usually may have is 1024

    inside(body)


@needs_bubblewrap
def test_no_sandbox_takes_the_terminals_of_others() -> None:
    code = (
        "import os\n"
        "held = []\n"
        "try:\n"
        "    while len(held) < 200: held.append(os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY))\n"
        "except OSError: pass\n"
        "print(len(held))"
    )

    async def body(box: BubblewrapSandbox) -> None:
        assert (await box.exec(["python3", "-c", code])).stdout == "64\n"
        talk = "import pty\npty.spawn(['sh', '-c', 'test -t 1 && echo terminal'])"
        assert "terminal" in (await box.exec(["python3", "-c", talk])).stdout

    inside(body)


@needs_bubblewrap
def test_memory_that_is_shared_has_a_file() -> None:
    code = (
        "import mmap, os, socket\n"
        "zero = os.open('/dev/zero', os.O_RDWR)\n"
        "assert os.read(zero, 3) == bytes(3)\n"
        "for file in (-1, zero):\n"
        "    try: mmap.mmap(file, 4096)\n"
        "    except OSError: print('refused')\n"
        "mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
        "with open('/dev/shm/file', 'wb+') as file:\n"
        "    file.truncate(4096)\n"
        "    mmap.mmap(file.fileno(), 4096)\n"
        "ours, theirs = socket.socketpair()\n"
        "before = ours.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)\n"
        "ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * before)\n"
        "print(ours.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == before)"
    )

    async def body(box: BubblewrapSandbox) -> None:
        for result in (await box.exec(["python3", "-c", code]), await box.python(code)):
            assert result.stdout == "refused\nrefused\nTrue\n", result

    inside(body)


@needs_bubblewrap
def test_a_task_sets_variables_folder_and_way_out() -> None:
    spec = SandboxSpec(env={"NAME": "value"}, workdir="/work/deep", allow=("127.0.0.1:9",))

    async def body() -> tuple[str, str]:
        async with open_sandbox("bubblewrap", spec) as box:
            first = (await box.exec("echo $NAME; pwd; echo $HTTP_PROXY")).stdout
            refused = "import urllib.request as u; u.urlopen('http://127.0.0.2/', timeout=20)"
            environ = {"NO_PROXY": "", "no_proxy": ""}
            second = (await box.exec(["python3", "-c", refused], env=environ)).stderr
            return first, second

    first, second = asyncio.run(body())
    assert first == "value\n/work/deep\nhttp://127.0.0.1:3128\n"
    assert "403" in second


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (SandboxSpec(image="python:3.12"), "image = 'python:3.12'"),
        (SandboxSpec(build=Build(Path("/task"))), "build = Build"),
        (SandboxSpec(compose=Path("/task/compose.yaml")), "compose = "),
        (SandboxSpec(writable=True), "writable = True"),
        (SandboxSpec(user="root"), "user = 'root'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_task_with_its_own_image_needs_an_engine(spec: SandboxSpec, field: str) -> None:
    with pytest.raises(ConfigError, match=r'no images.*sandbox = "docker"') as caught:
        sandbox_source("bubblewrap").check_spec(spec)
    assert field in str(caught.value)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"image": "python"}, "the bubblewrap sandbox has no setting 'image'"),
        ({"memroy": 1}, "Did you mean 'memory'"),
        ({"pool": 0}, "sandbox.pool must be a whole number, at least 1, got 0"),
        ({"memory": "1"}, "sandbox.memory must be a number, got '1'"),
        ({"memory": 2**20}, "does not fit into memory"),
        ({"memory": 192 * 2**20}, "leave none of memory = 201326592"),
        ({"lifetime": float("inf")}, "lifetime must be finite"),
        ({"pids": 3}, "pids must be at least 16, got 3"),
        ({"workdir": "work"}, "workdir must be an absolute path below /, got 'work'"),
        ({"workdir": "/."}, "workdir must be an absolute path below /, got '/.'"),
        ({"workdir": "/a/../usr/x"}, "workdir must not be in /usr, which this machine's programs"),
        ({"workdir": "/tmp/x"}, "workdir must not be in /tmp, which"),
        ({"env": {"A=B": "1"}}, "env: 'A=B' cannot be set"),
        ({"env": {"A": "a\0b"}}, "env: 'A' cannot be set: no name, a = in it, or a NUL"),
        ({"env": {"A": "x" * 2**17}}, "env: A has more than 131,071 bytes: use a file"),
        ({"env": {"A": 1}}, "sandbox.env must be a table of texts"),
        ({"allow": ["a b"]}, "sandbox.allow: 'a b' is no host"),
    ],
)
def test_a_wrong_setting_is_named(setting: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        sandbox_source({"backend": "bubblewrap", **setting})
    assert words in str(caught.value)


@needs_bubblewrap
def test_the_doctor_says_what_holds_each_limit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--backend", "bubblewrap"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[1] for line in lines if line.startswith("limit")} == {
        field.name for field in fields(Limits)
    }
    assert "6 * 7 = 42" in "".join(lines)
    assert main(["doctor", "--backend", "bubblewrap", "--image", "i"]) == 2
    assert "--image is for containers" in capsys.readouterr().err


@needs_bubblewrap
def test_cores_are_bounded_and_cannot_be_chosen() -> None:
    code = (
        "import os\nprint(len(os.sched_getaffinity(0)))\n"
        "try: os.sched_setaffinity(0, range(64))\nexcept PermissionError: print('refused')"
    )

    async def body(box: BubblewrapSandbox) -> None:
        assert (await box.python(code)).stdout == "1\nrefused\n"

    inside(body, NamespaceProfile(Limits(cpus=0.5)))


@pytest.fixture
def _fresh() -> Iterator[None]:
    system.find_system.cache_clear()
    yield
    system.find_system.cache_clear()


@pytest.mark.usefixtures("_fresh")
@pytest.mark.parametrize(
    ("platform", "program", "words"),
    [
        ("darwin", None, 'needs Linux, and this is darwin: use Docker, sandbox = "docker"'),
        ("linux", None, "needs the program bwrap: on Debian and Ubuntu, apt install bubblewrap"),
        ("linux", "false", "no Python 3.9 or newer with its whole library runs in bubblewrap"),
    ],
)
def test_what_is_missing_is_named(
    platform: str, program: str | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = program and shutil.which(program)
    monkeypatch.setattr(shutil, "which", lambda name: found)
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(ConfigError) as caught:
        asyncio.run(sandbox_source("bubblewrap").check())
    assert words in str(caught.value)
