"""Nothing that a guarded command starts outlives it, or the process that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.waiting import alive, wait_until
from vf.runtime import lifeline

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="adoption is Linux's")

# Starts a daemon as they are started: two forks, and a session of its own between them.
DAEMON = """
import os, signal, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        with open(sys.argv[1] + ".part", "w") as file:
            file.write(str(os.getpid()))
        os.rename(sys.argv[1] + ".part", sys.argv[1])
        signal.pause()
    os._exit(0)
os.wait()
"""
WAIT = "signal.pause()\n"
END = "while not os.path.exists(sys.argv[1]): pass\n"


@contextmanager
def guarded(code: str, file: Path, grace: float = 0.0) -> Iterator[subprocess.Popen[bytes]]:
    """Run Python code under a guard whose pipe closes at the end."""
    reading, writing = os.pipe()
    guard = [sys.executable, "-I", "-S", lifeline.__file__, str(reading), str(grace)]
    process = subprocess.Popen(
        [*guard, sys.executable, "-S", "-c", code, str(file)], pass_fds=[reading]
    )
    os.close(reading)
    try:
        yield process
    finally:
        with suppress(OSError):
            os.close(writing)
        process.wait(60)


def daemon(file: Path) -> int:
    return int(wait_until(lambda: file.read_text() if file.exists() else ""))


@pytest.mark.parametrize("grace", [0.0, 0.1])
def test_a_daemon_dies_with_the_command_that_started_it(tmp_path: Path, grace: float) -> None:
    with guarded(DAEMON + END, tmp_path / "pid", grace) as process:
        pid = daemon(tmp_path / "pid")
        assert process.wait(60) == 0
        assert not alive(pid)


def test_a_daemon_dies_when_the_pipe_closes(tmp_path: Path) -> None:
    with guarded(DAEMON + WAIT, tmp_path / "pid") as process:
        pid = daemon(tmp_path / "pid")
        assert alive(pid)
    assert process.returncode == 128 + signal.SIGKILL
    assert not alive(pid)


def test_the_command_dies_with_its_guard(tmp_path: Path) -> None:
    code = f"import os, signal, sys\nopen(sys.argv[1], 'w').write(str(os.getpid()))\n{WAIT}"
    with guarded(code, tmp_path / "pid") as process:
        pid = daemon(tmp_path / "pid")
        process.kill()
        process.wait(60)
        wait_until(lambda: not alive(pid))


FORKER = """
import os, signal, subprocess, sys
reading, writing = os.pipe()
subprocess.Popen([*sys.argv[1:-1], str(reading), "0", sys.executable, "-S", "-c",
    "import os, signal, sys; open(sys.argv[1], 'w').write(str(os.getpid())); signal.pause()",
    sys.argv[-1]], pass_fds=[reading])
child = os.fork()
if child == 0:
    signal.pause()
print(child, flush=True)
signal.pause()
"""


def test_a_forked_process_that_holds_the_pipe_cannot_keep_it_alive(tmp_path: Path) -> None:
    guard = [sys.executable, "-I", "-S", lifeline.__file__]
    command = [sys.executable, "-c", FORKER, *guard, str(tmp_path / "pid")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        forked = int(process.stdout.readline())
        try:
            pid = daemon(tmp_path / "pid")
            process.kill()
            wait_until(lambda: not alive(pid))
            assert alive(forked)
        finally:
            os.kill(forked, signal.SIGKILL)


def test_the_command_ignores_no_signal_that_python_does() -> None:
    reading, writing = os.pipe()
    guard = [sys.executable, "-I", "-S", lifeline.__file__, str(reading), "0"]
    # A shell, for Python would ignore them again by itself.
    said = subprocess.check_output(
        [*guard, "sh", "-c", "grep SigIgn /proc/self/status"], pass_fds=[reading], text=True
    )
    os.close(reading)
    os.close(writing)
    ignored = int(said.split()[1], 16)
    assert not ignored & (1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1))
