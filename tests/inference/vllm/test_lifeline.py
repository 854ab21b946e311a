"""A server never outlives the process that started it, and nothing of it outlives the server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.inference.vllm.conftest import variables
from tests.inference.vllm.stand_in_engine import COMMAND, Journal
from tests.waiting import alive, wait_until
from vf.inference.ports import choose_port
from vf.inference.vllm import server_process
from vf.inference.vllm.server_process import ServerProcess
from vf.runtime.errors import ConfigError

PARENT = """
import os, signal, sys, time
from pathlib import Path
from vf.inference.vllm.server_process import ServerProcess
try:
    server = ServerProcess(sys.argv[2:], os.environ, Path(sys.argv[1]))
    print("ready", flush=True)
    signal.pause()
except KeyboardInterrupt:
    time.sleep(0.3)  # in which an interrupted server would have ended
    print("interrupted", server.returncode, flush=True)
    signal.pause()
"""

FORKER = """
import os, signal, sys
from pathlib import Path
from vf.inference.vllm.server_process import ServerProcess
server = ServerProcess(sys.argv[2:], os.environ, Path(sys.argv[1]))
if os.fork() == 0:
    signal.pause()
server.stop()
print(server.returncode, flush=True)
os.killpg(0, 9)
"""


def stand_in(journal: Journal, **how: Any) -> tuple[list[str], dict[str, str]]:
    """Return the command and environment of a stand-in."""
    port = choose_port("127.0.0.1", 0)
    return [*COMMAND, "--port", str(port)], os.environ | variables(journal, how)


@contextmanager
def parent(tmp_path: Path, journal: Journal, **how: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a Python process that starts a server, in a process group like a terminal's."""
    command, env = stand_in(journal, **how)
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "log"), *command],
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        wait_until(lambda: journal.starts)
        yield process
    finally:
        process.kill()
        process.communicate()
        wait_until(lambda: not any(map(alive, journal.pids)))


@contextmanager
def running(tmp_path: Path, journal: Journal, **how: Any) -> Iterator[ServerProcess]:
    """Run a server from this process."""
    server = ServerProcess(*stand_in(journal, **how), tmp_path / "log")
    try:
        wait_until(lambda: "Loading" in server.last_line())
        yield server
    finally:
        server.stop()


def code_of(command: list[str], log: Path) -> tuple[int, str]:
    """Run a command to completion; return its exit code and the tail of its log."""
    server = ServerProcess(command, os.environ, log)
    wait_until(lambda: server.returncode is not None)
    assert server.returncode is not None
    server.stop()
    return server.returncode, server.tail()


@pytest.mark.slow
def test_a_killed_parent_takes_the_server_and_its_children_along(
    tmp_path: Path, journal: Journal
) -> None:
    with parent(tmp_path, journal, grandchild=True) as process:
        assert len(journal.pids) == 2
        assert all(map(alive, journal.pids))
        process.kill()
        wait_until(lambda: not any(map(alive, journal.pids)))


def test_ctrl_c_in_the_terminal_reaches_the_parent_alone(tmp_path: Path, journal: Journal) -> None:
    with parent(tmp_path, journal) as process:
        os.killpg(process.pid, signal.SIGINT)
        assert process.stdout is not None
        assert process.stdout.readline() == "interrupted None\n"
        assert all(map(alive, journal.pids))


@pytest.mark.slow
def test_stop_ends_all_that_the_server_started(tmp_path: Path, journal: Journal) -> None:
    with running(tmp_path, journal, grandchild=True) as server:
        assert all(map(alive, journal.pids))
        assert server.returncode is None
        server.stop()
        assert not any(map(alive, journal.pids))
        assert server.returncode == 128 + signal.SIGTERM
        server.stop()


def test_a_server_that_ignores_sigterm_is_killed(
    tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_process, "GRACE_SECONDS", 0.5)
    with running(tmp_path, journal, grandchild=True, ignore_sigterm=True) as server:
        server.stop()
        assert server.returncode == 128 + signal.SIGKILL
        assert not any(map(alive, journal.pids))


def test_what_a_dead_server_leaves_behind_is_ended(tmp_path: Path, journal: Journal) -> None:
    with running(tmp_path, journal, grandchild=True) as server:
        main, grandchild = journal.pids
        os.kill(main, signal.SIGKILL)
        wait_until(lambda: server.returncode is not None)
        assert server.returncode == 128 + signal.SIGKILL
        assert not alive(grandchild)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_guard_that_is_stopped_stops_the_server_first(
    tmp_path: Path, journal: Journal, number: int
) -> None:
    with running(tmp_path, journal) as server:
        [pid] = journal.pids
        group = os.getpgid(pid)
        ppid = subprocess.check_output(["ps", "-o", "ppid=", "-p", str(pid)], text=True)
        assert group == pid, "the server leads a group of its own"
        os.kill(int(ppid), number)
        wait_until(lambda: server.returncode is not None)
        assert server.returncode == 128 + signal.SIGTERM
        assert not alive(pid)


def test_a_forked_process_cannot_keep_the_server_alive(tmp_path: Path) -> None:
    sleeper = [sys.executable, "-S", "-c", "import signal; signal.pause()"]
    done = subprocess.run(
        [sys.executable, "-c", FORKER, str(tmp_path / "log"), *sleeper],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert done.stdout == f"{128 + signal.SIGTERM}\n"


def test_exit_codes_pass_through(tmp_path: Path) -> None:
    assert code_of([sys.executable, "-S", "-c", "raise SystemExit(7)"], tmp_path / "a")[0] == 7
    assert code_of([sys.executable, "-S", "-c", ""], tmp_path / "a")[0] == 0
    code, said = code_of([str(tmp_path / "no-such-server")], tmp_path / "a")
    assert code == 127
    assert "error: cannot run" in said
    assert "no-such-server: No such file or directory" in said


def test_a_log_that_cannot_be_written_is_an_error_of_the_config(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    with pytest.raises(ConfigError, match="log"):
        ServerProcess([sys.executable], os.environ, tmp_path / "log")
