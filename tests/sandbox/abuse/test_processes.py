"""Code that will not die, and code that kills: nobody outlives a timeout, nobody reaches ours."""

from __future__ import annotations

import asyncio

import pytest

from tests.waiting import until
from vf.sandbox.container.docker_sandbox import DockerSandbox

from .conftest import AS_ROOT_TOO, IN_CONTAINERS, Arena

BOTH, BY_ANOTHER_USER = AS_ROOT_TOO, IN_CONTAINERS

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
OURS = """
import os
ours = []
while 1 not in ours or len(ours) < 3:  # the process for the next program starts a moment later
    ours = []
    for name in os.listdir('/proc'):
        if name.isdigit():
            try: owner = os.stat(f'/proc/{name}/environ').st_uid
            except OSError: continue
            if owner != os.getuid(): ours.append(int(name))
"""


@BOTH
def test_a_daemon_dies_with_the_timeout(arena: Arena) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        code = DAEMON.format(then="time.sleep(1000)")
        results = await asyncio.gather(
            sandbox.exec(["python3", "-c", code], timeout=0.7),
            sandbox.python(code, timeout=0.7),
            sandbox.bash(f'python3 -c "{code}"', timeout=0.7),
        )
        assert [result.timed_out for result in results] == [True] * 3
        await arena.gone("vf-daemon")

    arena.attack(attack)


@BOTH
def test_what_is_left_in_the_background_dies_with_the_sandbox(arena: Arena) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        code = DAEMON.format(then="os._exit(0)")
        assert (await sandbox.exec(["python3", "-c", code])).ok
        await sandbox.bash("setsid nohup sleep 1238 > /dev/null 2>&1 &")
        await until(lambda: arena.running("vf-daemon"))
        await until(lambda: arena.running("sleep 1238"))
        await sandbox.close()

    arena.attack(attack, may_end=True)


@BOTH
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


@BY_ANOTHER_USER
def test_killing_everybody_kills_only_what_the_model_started(arena: Arena) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        # os.kill(-1) spares the caller, who then kills itself.
        suicide = "import os; os.kill(-1, 9); os.kill(os.getpid(), 9)"
        assert (await sandbox.exec(["python3", "-c", suicide])).returncode == 137
        assert (await sandbox.exec("echo alive")).stdout == "alive\n"
        await sandbox.python("import os; os.kill(-1, 9)")
        assert (await sandbox.exec("echo alive")).stdout == "alive\n"
        await sandbox.bash("kill -9 -1")
        assert (await sandbox.exec("echo alive")).stdout == "alive\n"
        # Calls that meet a dying interpreter or shell report the loss; later ones work.
        await asyncio.gather(sandbox.python("1"), sandbox.bash("true"))

    arena.attack(attack)


@BY_ANOTHER_USER
def test_pid_1_the_supervisor_and_the_keepers_cannot_be_signalled(arena: Arena) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        code = OURS + (
            "import signal\n"
            "for pid in ours:\n"
            "    for name in ('KILL', 'TERM', 'STOP', 'INT', 'HUP', 'SEGV', 'CHLD', 'ALRM'):\n"
            "        try: os.kill(pid, getattr(signal, 'SIG' + name)); print(name, pid)\n"
            "        except (PermissionError, ProcessLookupError): pass\n"
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
    except (OSError, ValueError, IndexError): pass
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
        attempt(name, lambda: open(folder + name, 'rb').read(1)[0])  # of the dead: nothing
    for name in ('mem', 'oom_score_adj', 'coredump_filter', 'timerslack_ns', 'comm'):
        attempt(name + ' w', lambda: put(folder + name))
    attempt('limit', lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, 3)))
    if pid in (1, os.getppid()):
        attempt('nice', lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))
        idle = os.sched_param(0)
        attempt('idle', lambda: os.sched_setscheduler(pid, os.SCHED_IDLE, idle))
print(won)
"""


@BOTH
def test_the_supervisors_descriptors_memory_and_limits_are_out_of_reach(arena: Arena) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        code = OURS + REACH.replace("os.getppid()", "min(set(ours) - {1})")
        for result in (await sandbox.exec(["python3", "-c", code]), await sandbox.python(code)):
            assert result.stdout == "[]\n", result

    arena.attack(attack)


@BY_ANOTHER_USER
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


@BOTH
def test_keepers_that_were_stopped_still_kill(arena: Arena) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        stop = "import os, signal\nos.kill(-1, signal.SIGSTOP)\nwhile True: pass"
        result = await sandbox.exec(["python3", "-c", stop], timeout=1)
        assert (result.timed_out, result.ended) == (True, False)
        # What waits to become the next programs was stopped, too; each costs one call.
        for call, line in ((sandbox.exec, "true"), (sandbox.python, "1"), (sandbox.bash, "true")):
            while not (await call(line, timeout=1)).ok:
                pass

    arena.attack(attack)


@BOTH
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
@BOTH
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


@BOTH
def test_descriptors_that_are_closed_harm_only_who_closed_them(arena: Arena) -> None:
    async def attack(sandbox: DockerSandbox) -> None:
        await sandbox.python("import os; os.closerange(0, 200)", timeout=1)
        await sandbox.bash("for n in {0..120}; do eval exec $n'<&-'; done", timeout=1)
        await sandbox.bash("cat /dev/zero >&101 <&100", timeout=0.5)
        assert (await sandbox.exec("echo alive")).stdout == "alive\n"
        # A shell without stdout is what was asked for; the next one has one again.
        await sandbox.bash("exit", timeout=10)
        await sandbox.python("import os; os._exit(0)", timeout=10)

    arena.attack(attack)
