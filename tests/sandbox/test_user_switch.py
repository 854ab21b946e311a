"""A supervisor that starts as root, and code that is another user: a container, without one.

It runs in a PID namespace of its own, since it kills every process of its user at the end.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from importlib import resources
from pathlib import Path

import pytest

from tests.waiting import until
from vf.sandbox.frames import CONNECTION_ENDED
from vf.sandbox.session import Session

# Users that no other test process has: their processes are counted on the whole machine.
UID, OTHER, GUARD = (base + os.getpid() for base in (100_000, 10_000_000, 20_000_000))
PYTHON = "/usr/bin/python3"
NAMESPACE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
MIB = 2**20


def _possible() -> bool:
    if os.getuid() or not os.access(PYTHON, os.X_OK) or not shutil.which("unshare"):
        return False
    return subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode == 0


pytestmark = pytest.mark.skipif(not _possible(), reason="needs root and PID namespaces")


@pytest.fixture
def workdir() -> Iterator[Path]:
    """A directory of the user's own."""
    path = Path(tempfile.mkdtemp(prefix="vf-test-"))
    os.chown(path, UID, UID)
    yield path
    shutil.rmtree(path)


def under_root(workdir: Path, body: Callable[[Session], Awaitable[None]], *flags: str) -> None:
    """Run it with a session whose code is the user's; check that nothing of that user stays."""

    async def run() -> None:
        source = (resources.files("vf.sandbox") / "supervisor.py").read_text("utf-8")
        # A shell is PID 1, so that the supervisor is a process that signals can reach.
        process = await asyncio.create_subprocess_exec(
            *(*NAMESPACE, "sh", "-c", '"$@"; exit $?', "sh", PYTHON, "-I", "-S", "-c", source),
            *("--user", f"{UID}:{UID}", "--guard", str(GUARD), "--workdir", str(workdir), *flags),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "SECRET": "of-root"},
        )
        assert process.stdin
        assert process.stdout
        session = Session(process.stdout, process.stdin)
        try:
            await session.begin()
            await body(session)
            assert session.lost is None
        finally:
            await session.close()
            process.stdin.close()
            assert await asyncio.wait_for(process.wait(), 60) == CONNECTION_ENDED

    asyncio.run(run())
    assert owned() == []


def owned() -> list[str]:
    """Return the processes of the user."""
    found = subprocess.run(
        ["ps", "-o", "args=", "-U", str(UID)], capture_output=True, text=True, check=False
    )
    return found.stdout.splitlines()


def test_code_is_another_user_without_any_right(workdir: Path) -> None:
    async def body(box: Session) -> None:
        show = "id -u; id -g; id -G; grep -E 'CapPrm|CapEff|CapInh|NoNewPrivs' /proc/self/status"
        rights = "CapInh:\t" + "0" * 16 + "\nCapPrm:\t" + "0" * 16 + "\nCapEff:\t" + "0" * 16
        expected = f"{UID}\n{UID}\n{UID}\n{rights}\nNoNewPrivs:\t1\n"
        code = f"import subprocess; print(subprocess.getoutput({show!r}))"
        assert (await box.exec(show)).stdout == expected
        assert (await box.bash(show)).stdout == expected
        assert (await box.python(code)).stdout == expected
        await box.write_file("d/f", "x")
        assert (await box.exec("stat -c '%u %g' d d/f")).stdout == f"{UID} {UID}\n" * 2
        assert (await box.exec("echo o >/dev/stdout; echo e >/dev/stderr")).stdout == "o\n"

    under_root(workdir, body)


REACH = """
import ctypes, os
mine = {os.getpid(), os.getppid()}
libc = ctypes.CDLL(None, use_errno=True)
others, reached = 0, []
for pid in [int(n) for n in os.listdir("/proc") if n.isdigit()]:
    status = open(f"/proc/{pid}/status").read()
    if f"Uid:\\t{os.getuid()}\\t" in status:
        continue
    others += 1
    for what, way in {
        "signal": lambda: os.kill(pid, 0),
        "descriptors": lambda: os.listdir(f"/proc/{pid}/fd"),
        "stdin": lambda: open(f"/proc/{pid}/fd/0"),
        "memory": lambda: open(f"/proc/{pid}/mem"),
        "maps": lambda: open(f"/proc/{pid}/maps").read(),
        "environ": lambda: open(f"/proc/{pid}/environ").read(),
    }.items():
        try:
            way()
            reached.append((pid, what))
        except OSError:
            pass
    if libc.ptrace(16, pid, 0, 0) == 0:
        reached.append((pid, "ptrace"))
print(others >= 4, reached)
"""


def test_supervisor_and_keepers_are_out_of_reach(workdir: Path) -> None:
    async def body(box: Session) -> None:
        await box.bash("sleep 60 &")
        assert (await box.python(REACH)).stdout == "True []\n"
        assert (await box.exec(["python3", "-"], input=REACH)).stdout == "True []\n"

    under_root(workdir, body)


def test_a_program_has_three_descriptors_and_none_of_the_supervisor(workdir: Path) -> None:
    async def body(box: Session) -> None:
        code = "import os; print(*sorted(f for f in os.listdir('/proc/self/fd')))"
        # 3 is the directory itself.
        assert (await box.exec(["python3", "-c", code])).stdout == "0 1 2 3\n"
        assert "SECRET" not in (await box.exec("cat /proc/1/environ 2>&1; true")).stdout

    under_root(workdir, body)


def test_killing_all_that_can_be_killed_kills_only_ones_own(workdir: Path) -> None:
    async def body(box: Session) -> None:
        await box.write_file("large", b"x" * 20 * MIB)
        for _ in range(2):
            # It spares the one that asks for it.
            assert (await box.exec("kill -9 -1; echo left")).stdout == "left\n"
            await asyncio.gather(box.python("1"), box.bash("1"))  # these may notice, and be lost
            assert (await box.python("import os; os.kill(-1, 9); 'left'")).stdout == "'left'\n"
            await box.bash("1")
            assert (await box.bash("kill -9 -1; echo left")).stdout == "left\n"
            await box.python("1")
            assert (await box.python("'fine'")).stdout == "'fine'\n"
            assert (await box.bash("echo fine")).stdout == "fine\n"
        loop = "while :; do kill -STOP -1; kill -9 -1; done"
        attack = asyncio.create_task(box.exec(loop, timeout=1))
        for _ in range(5):
            assert len(await box.read_file("large")) == 20 * MIB
            await box.write_file("small", "x")
        assert (await attack).timed_out

    under_root(workdir, body)


def test_files_are_judged_as_the_user_s(workdir: Path) -> None:
    secret = workdir / "secret"
    secret.write_text("of root")
    secret.chmod(0o600)
    (workdir / "shadow").symlink_to("/etc/shadow")
    (workdir / "etc").symlink_to("/etc")

    async def body(box: Session) -> None:
        for path in ("secret", "shadow", "/etc/shadow", "/proc/1/environ", "/proc/self/environ"):
            with pytest.raises(PermissionError):
                await box.read_file(path)
        for path in ("secret", "shadow", "/etc/x", "etc/x", "/x", "etc/new/x", "/dev/null"):
            with pytest.raises(PermissionError):
                await box.write_file(path, "x")
        await box.bash("mkdir locked; echo x > locked/f; chmod 0 locked; echo x > g; chmod 0 g")
        for path in ("locked/f", "g"):
            with pytest.raises(PermissionError):
                await box.read_file(path)
            with pytest.raises(PermissionError):
                await box.write_file(path, "x")

    under_root(workdir, body)
    assert secret.read_text() == "of root"


def test_a_link_that_is_swapped_meanwhile_leads_nowhere_else(workdir: Path) -> None:
    async def body(box: Session) -> None:
        swap = "echo mine > mine; while :; do ln -sfn /etc/shadow l; ln -sfn mine l; done"
        swapping = asyncio.create_task(box.exec(swap, timeout=0.5))
        while not swapping.done():
            try:
                assert await box.read_file("l") == b"mine\n"
            except (PermissionError, FileNotFoundError):
                continue
        assert (await swapping).timed_out

    under_root(workdir, body)


def test_another_user_can_be_had_and_is_killed_as_well(workdir: Path) -> None:
    async def body(box: Session) -> None:
        assert (await box.exec("id -u; id -g; id -G", user="0", cwd="/")).stdout == "0\n0\n0\n"
        assert (await box.exec("id -u", user=str(OTHER), cwd="/")).stdout == f"{OTHER}\n"
        assert (await box.exec("id -u", user="nobody", cwd="/")).stdout == "65534\n"
        for user in ("0", str(OTHER)):
            cmd = "(setsid sleep 7330.5 &); sleep 7330.5"
            assert (await box.exec(cmd, user=user, cwd="/", timeout=0.5)).timed_out
        assert "7330.5" not in (await box.exec("ps ax", user="0", cwd="/")).stdout
        for user in ("4294967295", "no-such-user", "-1", str(GUARD)):
            with pytest.raises(ValueError, match=r"user|uid"):
                await box.exec("id", user=user)
        assert (await box.exec("id -u")).stdout == f"{UID}\n"

    under_root(workdir, body)


@pytest.mark.parametrize(
    "bomb",
    [
        "b() { b | b & }; b; sleep 60",
        pytest.param("while :; do (setsid sh -c 'sleep 60' &); done", marks=pytest.mark.slow),
        pytest.param(
            "python3 -c 'import os\nwhile True:\n try: os.fork()\n except OSError: pass'",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_fork_bomb_is_put_out(workdir: Path, bomb: str) -> None:
    async def body(box: Session) -> None:
        for call in (box.exec, box.bash):
            result = await call(bomb, timeout=0.5)
            assert result.timed_out or "fork" in result.stderr
        # The limit counts killed processes until the kernel has removed them.
        await until(lambda: len(owned()) < 10)
        assert (await box.exec("echo fine", timeout=20)).stdout == "fine\n"
        assert (await box.bash("echo fine", timeout=20)).stdout == "fine\n"
        assert (await box.python("'fine'", timeout=20)).stdout == "'fine'\n"

    under_root(workdir, body, "--rlimit", "NPROC=100")


def test_at_the_end_nothing_of_the_user_is_left(workdir: Path) -> None:
    async def body(box: Session) -> None:
        await box.bash("(setsid sh -c 'trap \"\" TERM; sleep 60; sleep 60' &) ; sleep 60 & disown")
        await box.python("import subprocess; p = subprocess.Popen(['sleep', '60'])")
        assert len(owned()) >= 5

    under_root(workdir, body)
