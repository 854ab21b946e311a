"""Processes on this machine: what they see, how they end, and that none is left."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import alive, wait_until
from vf.cluster.fleet import HOST, PORT, Command, Fleet, Resources
from vf.cluster.local_fleet import LocalFleet
from vf.runtime.errors import ConfigError

SLEEP = ["python", "-S", "-c", "import signal; signal.pause()"]
# Writes its process id to the log; with an argument it ignores SIGTERM.
STUBBORN = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), flush=True)
signal.pause()
"""
PARENT = """
import pathlib, signal, sys
from vf.cluster.fleet import Command, Resources
from vf.cluster.local_fleet import LocalFleet
fleet = LocalFleet()
fleet.reserve([("worker", 1, Resources())])
fleet.place("worker", Resources(), Command(sys.argv[2:], log=pathlib.Path(sys.argv[1])))
signal.pause()
"""


@pytest.fixture
def fleet() -> Iterator[LocalFleet]:
    made = LocalFleet(["GPU-a", "GPU-b", "GPU-c"])
    made.reserve([("server", 1, Resources(gpus=2)), ("worker", 3, Resources())])
    yield made
    made.stop()


def first_number(log: Path) -> int:
    """Wait until a process has written a number to its log."""
    return int(wait_until(lambda: log.exists() and log.read_text().strip()))


def test_a_process_gets_address_port_and_devices_and_its_output_is_kept(
    fleet: LocalFleet, tmp_path: Path
) -> None:
    code = "import json, os, sys; print(json.dumps([*sys.argv[1:], os.environ['KIND'], "
    code += "os.environ['CUDA_VISIBLE_DEVICES'], sys.executable]))"
    log = tmp_path / "logs" / "server.log"
    command = Command(["python", "-c", code, HOST, PORT], {"KIND": f"at {HOST}"}, log)
    for _ in range(2):  # what a first process has written stays
        handle = fleet.place("server", Resources(gpus=2), command)
        assert wait_until(lambda: handle.poll() is not None)  # noqa: B023
    line = json.loads(log.read_text().splitlines()[1])
    assert line == ["127.0.0.1", str(handle.port), "at 127.0.0.1", "GPU-a,GPU-b", sys.executable]
    assert (handle.role, handle.host, handle.poll(), handle.lost) == ("server", fleet.host, 0, None)
    with socket.create_server((handle.host, handle.port)):
        pass


def test_other_processes_see_no_device_but_those_that_their_command_names(
    fleet: LocalFleet, tmp_path: Path
) -> None:
    code = "import os; print(repr(os.environ['CUDA_VISIBLE_DEVICES']))"
    seen = []
    for number, env in enumerate([{}, {"CUDA_VISIBLE_DEVICES": "1"}]):
        log = tmp_path / str(number)
        handle = fleet.place("worker", Resources(), Command(["python", "-c", code], env, log))
        wait_until(lambda: handle.poll() is not None)  # noqa: B023
        seen.append(log.read_text().strip())
    assert seen == ["''", "'1'"]


@pytest.mark.parametrize(
    ("code", "status"),
    [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 11)", -signal.SIGSEGV)],
)
def test_a_process_has_its_exit_status_or_its_signal(
    fleet: LocalFleet, code: str, status: int
) -> None:
    handle = fleet.place("worker", Resources(), Command(["python", "-c", code]))
    wait_until(lambda: handle.poll() is not None)
    assert handle.poll() == status


def test_a_stopped_process_gets_sigterm_and_after_its_patience_sigkill(
    fleet: LocalFleet, tmp_path: Path
) -> None:
    polite = fleet.place("worker", Resources(), Command(SLEEP))
    log = tmp_path / "log"
    command = Command(["python", "-S", "-c", STUBBORN], log=log)
    stubborn = fleet.place("worker", Resources(), command)
    pid = first_number(log)
    polite.stop(60.0)
    stubborn.stop(0.1)
    assert (polite.poll(), stubborn.poll()) == (-signal.SIGTERM, -signal.SIGKILL)
    assert not alive(pid)
    stubborn.stop()


def test_places_and_devices_are_limited_and_come_back_when_a_process_ends(
    fleet: LocalFleet,
) -> None:
    first = fleet.place("server", Resources(gpus=2), Command(SLEEP))
    with pytest.raises(ConfigError, match="all 1 places that were reserved for servers are taken"):
        fleet.place("server", Resources(gpus=1), Command(SLEEP))
    with pytest.raises(ConfigError, match="a worker needs 2 GPUs, of which 1 are free"):
        fleet.place("worker", Resources(gpus=2), Command(SLEEP))
    with pytest.raises(ConfigError, match="all 0 places that were reserved for ranks are taken"):
        fleet.place("rank", Resources(), Command(SLEEP))
    first.stop()
    second = fleet.place("server", Resources(gpus=2), Command(SLEEP))
    assert second.devices == ["GPU-a", "GPU-b"]


def test_more_gpus_than_there_are_cannot_be_reserved(fleet: LocalFleet) -> None:
    wanted = Resources(gpus=1)
    with pytest.raises(ConfigError, match="needs 2 for servers and 2 for ranks of 3 GPUs"):
        fleet.reserve([("rank", 2, wanted)])
    fleet.reserve([("rank", 1, wanted)])
    assert fleet.place("rank", wanted, Command(SLEEP)).devices == ["GPU-a"]
    fleet.place("worker", Resources(), Command(SLEEP))  # reserved before, and still


def test_a_program_that_is_not_there_is_named(fleet: LocalFleet, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no program 'no-such-program' on"):
        fleet.place("worker", Resources(), Command(["no-such-program"]))
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"log .*/file/log cannot be written: "):
        fleet.place("worker", Resources(), Command(SLEEP, log=tmp_path / "file" / "log"))


def test_a_stopped_fleet_has_ended_its_processes_and_places_no_more(tmp_path: Path) -> None:
    made: Fleet = LocalFleet()
    made.reserve([("worker", 2, Resources())])
    handles = [made.place("worker", Resources(), Command(SLEEP)) for _ in range(2)]
    made.stop()
    assert [handle.poll() for handle in handles] == [-signal.SIGTERM] * 2
    with pytest.raises(ConfigError, match="all 0 places"):
        made.place("worker", Resources(), Command(SLEEP))
    made.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="adoption is Linux's")
def test_processes_end_with_the_one_that_placed_them(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
    command = [sys.executable, "-c", PARENT, str(log), "python", "-S", "-c", code]
    with subprocess.Popen(command) as parent:
        pid = first_number(log)
        parent.kill()
    wait_until(lambda: not alive(pid))
