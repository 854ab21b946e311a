"""Code that will not die, and code that kills: nobody outlives a timeout, nobody reaches ours."""

from __future__ import annotations

import asyncio

import pytest

from tests.waiting import until
from vf.sandbox.container.docker_sandbox import DockerSandbox
from vf.sandbox.container.profile import UID

from .conftest import Arena

DAEMON = """
import os, sys, time
if os.fork(): {then}
os.setsid()
if os.fork(): os._exit(0)
os.chdir('/')
for fd in range(3): os.close(fd)
time.sleep(1000)  # vf-daemon
"""
# The parents of everything that the model starts: PID 1, the supervisor, the keepers.
OURS = f"""
import os
ours = []
for name in os.listdir('/proc'):
    if name.isdigit():
        try: status = open(f'/proc/{{name}}/status').read()
        except OSError: continue
        real = status.split('\\nUid:')[1].split()[0]
        if real != '{UID}': ours.append(int(name))
assert 1 in ours and len(ours) > 2, ours
"""


def test_a_sleeper_in_the_background_dies_with_the_timeout(arena: Arena) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        result = await sandbox.exec("sleep 1234 & sleep 1235 & (sleep 1236 &); wait", timeout=0.5)
        assert result.timed_out
        await arena.gone("sleep 123")

    arena.attack(attack)


def test_a_sleeper_in_the_background_does_not_hold_the_answer_up(arena: Arena) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        result = await sandbox.exec("sleep 1237 & echo done", timeout=50)
        assert (result.stdout, result.timed_out) == ("done\n", False)
        await sandbox.exec("kill $(pgrep -x sleep || ps ax | awk '/sleep 1237/ {print $1}')")

    arena.attack(attack)


@pytest.mark.parametrize("how", ["exec", "python", "bash"])
def test_a_daemon_dies_with_the_timeout(arena: Arena, how: str) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        code = DAEMON.format(then="time.sleep(1000)")
        if how == "exec":
            result = await sandbox.exec(["python3", "-c", code], timeout=0.7)
        elif how == "python":
            result = await sandbox.python(code, timeout=0.7)
        else:
            result = await sandbox.bash(f'python3 -c "{code}"', timeout=0.7)
        assert result.timed_out
        await arena.gone("vf-daemon")

    arena.attack(attack)


def test_what_is_left_in_the_background_dies_with_the_sandbox(arena: Arena) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        code = DAEMON.format(then="os._exit(0)")
        assert (await sandbox.exec(["python3", "-c", code])).ok
        await sandbox.bash("setsid nohup sleep 1238 > /dev/null 2>&1 &")
        await until(lambda: arena.running("vf-daemon"))
        await until(lambda: arena.running("sleep 1238"))
        await sandbox.close()

    arena.attack(attack, may_end=True)


def test_zombies_are_buried(arena: Arena) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        # Three times as many dead as there may be processes: each orphaned, then dead.
        code = (
            "import os\nfor _ in range(200):\n    if not os.fork():\n        os.fork(); os._exit(0)"
        )
        code += "\n    os.wait()"
        assert (await sandbox.exec(["python3", "-c", code], timeout=50)).ok
        zombies = "import os\nfor _ in range(20):\n    if not os.fork(): os._exit(0)\n"
        zombies += "import time; time.sleep(1000)"
        assert (await sandbox.exec(["python3", "-c", zombies], timeout=0.5)).timed_out
        await until(lambda: "" not in arena.processes())  # a zombie has no command line

    arena.attack(attack)


def test_signals_that_are_ignored_do_not_help(arena: Arena) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        code = (
            "import signal, time\n"
            "for n in set(signal.valid_signals()) - {9, 19}: signal.signal(n, signal.SIG_IGN)\n"
            "time.sleep(1000)  # vf-stubborn"
        )
        result = await sandbox.exec(["python3", "-c", code], timeout=0.7)
        assert (result.returncode, result.timed_out) == (137, True)
        result = await sandbox.python(code, timeout=0.5)
        assert result.timed_out
        assert "lost" in result.stderr
        result = await sandbox.bash("trap '' INT TERM HUP USR1; sleep 1239", timeout=0.5)
        assert result.timed_out
        await arena.gone("vf-stubborn")
        await arena.gone("sleep 1239")

    arena.attack(attack)


def test_stopped_processes_are_killed_too(arena: Arena) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        result = await sandbox.exec("sleep 1240 & kill -STOP $! $$; sleep 1241", timeout=0.5)
        assert result.timed_out
        await arena.gone("sleep 124")

    arena.attack(attack)


@pytest.mark.parametrize("how", ["exec", "python", "bash"])
def test_waiting_for_stdin_ends_at_once(arena: Arena, how: str) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        if how == "exec":
            result = await sandbox.exec("read line; cat; echo done", timeout=30)
        elif how == "python":
            result = await sandbox.python("import sys; print(sys.stdin.read() + 'done')")
        else:
            result = await sandbox.bash("read line; cat; echo done", timeout=30)
        assert (result.stdout, result.timed_out) == ("done\n", False)

    arena.attack(attack)


@pytest.mark.parametrize("how", ["exec", "python", "bash"])
def test_killing_everybody_kills_only_what_the_model_started(arena: Arena, how: str) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        for _ in range(5):
            if how == "exec":
                # Spares the caller, who is then killed by himself.
                result = await sandbox.exec(
                    ["python3", "-c", "import os; os.kill(-1, 9); os.kill(os.getpid(), 9)"]
                )
                assert result.returncode == 137
            elif how == "python":
                await sandbox.python("import os; os.kill(-1, 9)")
            else:
                await sandbox.bash("kill -9 -1")
            assert (await sandbox.exec("echo alive")).stdout == "alive\n"

    arena.attack(attack)


@pytest.mark.parametrize("signal", ["KILL", "TERM", "STOP", "INT", "HUP", "SEGV", "CHLD", "ALRM"])
def test_pid_1_the_supervisor_and_the_keepers_cannot_be_signalled(
    arena: Arena, signal: str
) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        code = OURS + (
            "import signal\n"
            "for pid in ours:\n"
            f"    try: os.kill(pid, signal.SIG{signal}); print('signalled', pid)\n"
            "    except (PermissionError, ProcessLookupError): pass\n"
            "print('done')"
        )
        assert (await sandbox.exec(["python3", "-c", code])).stdout == "done\n"
        assert (await sandbox.python(code)).stdout == "done\n"

    arena.attack(attack)


REACH = """
import resource
won = []
def attempt(what, do):
    try: do(); won.append((pid, what))
    except (OSError, ValueError): pass
def put(path):
    fd = os.open(path, os.O_WRONLY)
    os.write(fd, b'0')
for pid in ours:
    folder = f'/proc/{pid}/'
    for name in ('fd', 'cwd', 'root', 'task/../fd'):
        attempt(name, lambda: os.listdir(folder + name))
    for fd in range(32):
        for flag in (os.O_RDONLY, os.O_WRONLY):
            attempt(('fd', fd, flag), lambda: os.open(folder + f'fd/{fd}', flag))
    for name in ('mem', 'environ', 'maps', 'auxv', 'syscall', 'stack'):
        attempt(name, lambda: open(folder + name, 'rb').read(1))
    for name in ('mem', 'oom_score_adj', 'coredump_filter', 'timerslack_ns', 'comm'):
        attempt(name + ' w', lambda: put(folder + name))
    attempt('limit', lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, 3)))
    if pid in (1, os.getppid()):
        attempt('nice', lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))
print(won)
"""


def test_the_supervisors_descriptors_memory_and_limits_are_out_of_reach(arena: Arena) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        code = OURS + REACH.replace("os.getppid()", "min(set(ours) - {1})")
        for result in (await sandbox.exec(["python3", "-c", code]), await sandbox.python(code)):
            assert result.stdout == "[]\n", result

    arena.attack(attack)


def test_keepers_that_are_slowed_down_still_kill(arena: Arena) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        # Who has the rights of the model's user can be given a low priority by that user.
        code = OURS + (
            "for pid in ours:\n"
            "    try: os.setpriority(os.PRIO_PROCESS, pid, 19); os.sched_setaffinity(pid, {0})\n"
            "    except OSError: pass\n"
            "for _ in range(5): os.fork()\n"
            "while True: pass  # vf-spin"
        )
        assert (await sandbox.exec(["python3", "-c", code], timeout=1)).timed_out
        await arena.gone("vf-spin")

    arena.attack(attack, may_end=True)


def test_nothing_can_be_traced_or_taken_from_ours(arena: Arena) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        code = OURS + (
            "import ctypes\n"
            "libc = ctypes.CDLL(None, use_errno=True)\n"
            "ATTACH, SEIZE, PIDFD_OPEN, PIDFD_GETFD, PROCESS_VM_READV = 16, 0x4206, 434, 438, 310\n"
            "won = []\n"
            "for pid in ours:\n"
            "    for request in (ATTACH, SEIZE):\n"
            "        if libc.ptrace(request, pid, 0, 0) == 0: won.append(('trace', pid))\n"
            "    pidfd = libc.syscall(PIDFD_OPEN, pid, 0)\n"
            "    if pidfd >= 0:\n"
            "        for fd in range(32):\n"
            "            if libc.syscall(PIDFD_GETFD, pidfd, fd, 0) >= 0: won.append((pid, fd))\n"
            "    buffer = ctypes.create_string_buffer(8)\n"
            "    class Vec(ctypes.Structure):\n"
            "        _fields_ = [('base', ctypes.c_void_p), ('size', ctypes.c_size_t)]\n"
            "    here, there = Vec(ctypes.addressof(buffer), 8), Vec(0x400000, 8)\n"
            "    if libc.syscall(PROCESS_VM_READV, pid, ctypes.byref(here), 1,\n"
            "                    ctypes.byref(there), 1, 0) > 0: won.append(('memory', pid))\n"
            "print(won)"
        )
        assert (await sandbox.exec(["python3", "-c", code])).stdout == "[]\n"

    arena.attack(attack)


FORGED = """
import json, os, struct
def frame(**header):
    parts = [b'forged', b'', b'', b'']
    text = json.dumps({**header, 'parts': [len(part) for part in parts]}).encode()
    return struct.pack('>II', len(text), 6) + text + b''.join(parts)
answers = [frame(id=n, done=True, returncode=0, timed_out=False, missing=[0, 0])
           for n in range(40)]
lines = [b'%d 0\\n' % n for n in range(40)]
for fd in range(1, 128):
    for data in answers + lines:
        try: os.write(fd, data)
        except OSError: break
"""


@pytest.mark.parametrize("how", ["exec", "python", "bash"])
def test_frames_cannot_be_forged(arena: Arena, how: str) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        code = FORGED + "\nos._exit(3)"
        if how == "exec":
            result = await sandbox.exec(["python3", "-c", code])
            assert result.returncode == 3
        elif how == "python":
            # The interpreter is the model's: what it forges there answers its own call at most.
            await sandbox.python(FORGED)
        else:
            await sandbox.write_file("forged.py", code)
            result = await sandbox.bash("python3 forged.py; exit 3")
            assert result.returncode == 3
        other, mine = await asyncio.gather(sandbox.exec("echo true; exit 5"), sandbox.python("1"))
        assert (other.returncode, other.stdout) == (5, "true\n")
        assert mine.stdout == "1\n"

    arena.attack(attack)


def test_descriptors_that_are_closed_harm_only_who_closed_them(arena: Arena) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        await sandbox.python("import os; os.closerange(0, 200)", timeout=3)
        await sandbox.bash("for n in {0..120}; do eval exec $n'<&-'; done", timeout=3)
        await sandbox.bash("cat /dev/zero >&101 <&100", timeout=0.5)
        assert (await sandbox.exec("echo alive")).stdout == "alive\n"
        # A shell without stdout is what was asked for; the next one has one again.
        await sandbox.bash("exit", timeout=10)
        await sandbox.python("import os; os._exit(0)", timeout=10)

    arena.attack(attack)
