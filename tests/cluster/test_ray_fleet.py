"""Processes on a Ray cluster: where they are, what they see, how they end, and what is refused."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.ray_machines import CPUS, MACHINES, Machines
from tests.waiting import alive, wait_until
from vf.cluster.fleet import HOST, PORT, Command, Fleet, Resources
from vf.cluster.ray_fleet import RayFleet
from vf.runtime.errors import ConfigError, PlacementError

pytestmark = pytest.mark.slow

PYTHON = ["python", "-S", "-c"]
SLEEP = [*PYTHON, "import signal; signal.pause()"]
SAY = [*PYTHON, "import sys; print(*sys.argv[1:], flush=True); sys.exit(3)", HOST, PORT]
# Writes its own process id and its child's, and both wait.
PARENT = """
import os, signal
if (pid := os.fork()):
    print(os.getpid(), pid, flush=True)
signal.pause()
"""
# Places a process, writes what another process needs to join, and waits.
DRIVER = """
import pathlib, signal, sys
from vf.cluster.fleet import Command, Resources
from vf.cluster.ray_fleet import RayFleet
fleet = RayFleet(sys.argv[1])
fleet.reserve([("rank", 1, Resources()), ("worker", 1, Resources(0.5))])
command = Command(sys.argv[3:], log=pathlib.Path(sys.argv[2]))
fleet.place("rank", Resources(), command)
print(fleet.reservation.to_text(), flush=True)
signal.pause()
"""
WIDE = f"""
import sys
from vf.cluster.fleet import Resources
from vf.cluster.ray_fleet import RayFleet
RayFleet(sys.argv[1]).reserve([("worker", int(sys.argv[2]), Resources({CPUS}))])
"""
JOINED = """
import sys
from vf.cluster.fleet import Command, Resources
from vf.cluster.ray_fleet import RayFleet, Reservation
fleet = RayFleet.joined(Reservation.from_text(sys.argv[1]), "127.0.1.9")
fleet.reserve([("worker", 1, Resources())])
handle = fleet.place("worker", Resources(), Command(["python", "-c", "print('hello')"]))
handle.wait()
fleet.stop()
print(fleet.host, handle.poll())
"""


@pytest.fixture
def fleet(machines: Machines) -> Iterator[RayFleet]:
    made = RayFleet(machines.address)
    yield made
    made.stop()


def numbers(log: Path) -> list[int]:
    """Wait until a process has written a line of numbers to its log."""
    text = wait_until(lambda: log.exists() and log.read_text().partition("\n")[0])
    return [int(word) for word in str(text).split()]


def test_a_process_is_placed_and_its_output_and_status_come_back(
    fleet: RayFleet, machines: Machines, tmp_path: Path
) -> None:
    as_fleet: Fleet = fleet
    as_fleet.reserve([("worker", 1, Resources(1.5))])
    log = tmp_path / "deep" / "log"
    handle = as_fleet.place("worker", Resources(), Command(SAY, log=log))
    assert handle.host in {f"127.0.1.{number + 1}" for number in range(machines.count)}
    assert handle.role == "worker"
    wait_until(lambda: handle.poll() is not None)
    assert (handle.poll(), handle.lost) == (3, None)
    assert log.read_text() == f"{handle.host} {handle.port}\n"
    again = as_fleet.place("worker", Resources(), Command(SLEEP))
    with pytest.raises(ConfigError, match="all 1 places that were reserved for workers are taken"):
        as_fleet.place("worker", Resources(), Command(SLEEP))
    assert again.poll() is None


def test_a_process_sees_the_gpus_that_it_was_given(
    machines: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = machines.add(num_gpus=2).node_ip_address
    fleet = RayFleet(machines.address)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")  # of the asker's machine
    code = "import os; print([os.environ.get('CUDA_VISIBLE_DEVICES')])"
    try:
        fleet.reserve([("rank", 1, Resources(1, 1)), ("worker", 1, Resources())])
        for role, seen in (("rank", ["['0']", "['1']"]), ("worker", ["['']"])):
            command = Command([*PYTHON, code], log=tmp_path / role)
            handle = fleet.place("rank" if role == "rank" else "worker", Resources(), command)
            handle.wait()
            assert (tmp_path / role).read_text().strip() in seen
    finally:
        fleet.stop()
        machines.lose(host)


def test_stopping_ends_all_that_a_process_started(fleet: RayFleet, tmp_path: Path) -> None:
    fleet.reserve([("worker", 1, Resources())])
    handle = fleet.place("worker", Resources(), Command([*PYTHON, PARENT], log=tmp_path / "log"))
    pids = numbers(tmp_path / "log")
    assert all(map(alive, pids))
    handle.stop(5)
    handle.stop(5)
    assert handle.poll() == -signal.SIGTERM
    assert not any(map(alive, pids))


def test_a_program_that_is_not_there_is_a_wrong_setting(fleet: RayFleet, tmp_path: Path) -> None:
    fleet.reserve([("server", 1, Resources())])
    log = tmp_path / "log"
    with pytest.raises(ConfigError, match="there is no program 'vf-no-such-program'"):
        fleet.place("server", Resources(), Command(["vf-no-such-program"], log=log))
    handle = fleet.place("server", Resources(), Command(SLEEP))
    assert handle.poll() is None
    with pytest.raises(ConfigError, match="are taken"):
        fleet.place("server", Resources(), Command(SLEEP, log=log))
    assert str(log) not in [file.path for file in psutil.Process().open_files()]


def test_a_reservation_that_is_gone_leaves_no_connection(
    fleet: RayFleet, machines: Machines
) -> None:
    fleet.reserve([("server", 1, Resources())])
    assert fleet.reservation is not None
    gone = replace(fleet.reservation, group="gone")
    fleet.stop()
    with pytest.raises(PlacementError, match="placement group is gone"):
        RayFleet.joined(gone)
    RayFleet(machines.address).stop()


def test_a_cluster_that_is_too_small_is_reported_at_once(fleet: RayFleet) -> None:
    with pytest.raises(ConfigError, match="2 GPUs are missing"):
        fleet.reserve([("server", 1, Resources(1, 2)), ("worker", 1, Resources())])
    with pytest.raises(ConfigError, match="no machine has room for one more trainer rank"):
        fleet.reserve([("rank", MACHINES, Resources(CPUS * 0.6)), ("rank", 1, Resources(1.5))])
    assert fleet.reservation is None


def test_gpus_of_machines_that_are_still_to_come_are_counted_on(
    fleet: RayFleet, machines: Machines
) -> None:
    assert not fleet.has_gpus
    fleet.stop()
    waiting = RayFleet(machines.address, wait=1.0)
    assert waiting.has_gpus
    waiting.stop()


def test_what_others_use_is_not_waited_for_for_ever(
    fleet: RayFleet, machines: Machines, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("vf.cluster.ray_fleet.GROUP_SECONDS", 1.0)
    with driver(machines, tmp_path / "log", SLEEP), pytest.raises(ConfigError, match="others use"):
        fleet.reserve([("worker", int(MACHINES * CPUS), Resources())])


def test_a_lost_machine_is_noticed_and_what_ran_there_gets_another(
    fleet: RayFleet, machines: Machines, tmp_path: Path
) -> None:
    # More than the head has, whose loss would be the cluster's.
    fleet.reserve([("worker", MACHINES - 1, Resources(CPUS))])
    commands = [Command([*PYTHON, PARENT], log=tmp_path / str(n)) for n in range(MACHINES - 1)]
    handles = [fleet.place("worker", Resources(), command) for command in commands]
    pids = [numbers(tmp_path / str(n)) for n in range(MACHINES - 1)]
    number = next(n for n, each in enumerate(handles) if each.host != "127.0.1.1")
    victim = handles[number]
    machines.add()
    machines.lose(victim.host)
    wait_until(lambda: victim.lost is not None, 30)
    assert victim.poll() is None
    wait_until(lambda: not any(map(alive, pids[number])), 30)
    again = fleet.place("worker", Resources(), Command(SLEEP))
    assert again.host != victim.host
    others = [each for each in handles if each is not victim]
    assert all(each.poll() is None and each.lost is None for each in others)
    victim.stop()


class driver:
    """A process that has placed another one."""

    def __init__(self, machines: Machines, log: Path, command: list[str]) -> None:
        words = [sys.executable, "-c", DRIVER, machines.address, str(log), *command]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> tuple[subprocess.Popen[str], str]:
        assert self.process.stdout is not None
        return self.process, self.process.stdout.readline()

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate()


def test_nothing_is_left_of_a_run_whose_driver_was_killed(
    machines: Machines, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    with driver(machines, log, [*PYTHON, PARENT]) as (process, _):
        pids = numbers(log)
        assert all(map(alive, pids))
        process.kill()
        wait_until(lambda: not any(map(alive, pids)), 30)
    fleet = RayFleet(machines.address)
    try:
        count = int(CPUS) * len(machines.ray.list_all_nodes())
        fleet.reserve([("worker", count, Resources())])  # nor is anything reserved
    finally:
        fleet.stop()


def test_a_runs_other_process_places_in_what_was_reserved(
    machines: Machines, tmp_path: Path
) -> None:
    with driver(machines, tmp_path / "log", SLEEP) as (_, reservation):
        assert json.loads(reservation)["bundles"][1][0] == "worker"
        command = [sys.executable, "-c", JOINED, reservation]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stdout) == (0, "hello\n127.0.1.9 0\n"), done.stderr


def test_a_machine_that_cannot_run_the_program_is_named(machines: Machines, tmp_path: Path) -> None:
    (tmp_path / "vf").mkdir()
    (tmp_path / "vf" / "__init__.py").write_text("raise ImportError('no image')")
    node = machines.add(env_vars={"PYTHONPATH": str(tmp_path)})
    try:
        places = len(machines.ray.list_all_nodes())
        command = [sys.executable, "-c", WIDE, machines.address, str(places)]
        done = subprocess.run(  # elsewhere, for Ray's processes look in the driver's folder, too
            command, cwd="/", capture_output=True, text=True, timeout=120, check=False
        )
        assert f"the machine {node.node_ip_address} of the cluster cannot run vf-rl" in done.stderr
        assert "cluster.runtime_env" in done.stderr
    finally:
        machines.lose(node.node_ip_address)


def test_a_machine_on_which_nothing_starts_is_named(machines: Machines, tmp_path: Path) -> None:
    (tmp_path / "vf").mkdir()
    (tmp_path / "vf" / "__init__.py").write_text("import time; time.sleep(60)")
    node = machines.add(env_vars={"PYTHONPATH": str(tmp_path)})
    try:
        places = len(machines.ray.list_all_nodes())
        code = "import vf.cluster.ray_cluster as c; c.START_SECONDS = 10.0\n" + WIDE
        command = [sys.executable, "-c", code, machines.address, str(places)]
        done = subprocess.run(
            command, cwd="/", capture_output=True, text=True, timeout=120, check=False
        )
        said = done.stderr.splitlines()[-1]
        assert "no process of the run started on " in said
        assert f"{node.node_ip_address} within 10 s" in said
        assert "raise cluster.wait" in said
    finally:
        machines.lose(node.node_ip_address)


def test_a_folder_that_machines_do_not_share_is_named(machines: Machines) -> None:
    fleet = RayFleet(machines.address, shared=[Path("/proc/1/none")])
    try:
        with pytest.raises(ConfigError, match="cannot write to /proc/1/none"):
            fleet.reserve([("worker", 1, Resources())])
    finally:
        fleet.stop()


def test_without_ray_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    words = r"cluster\.backend = \"ray\".*pip install 'vf-rl\[ray\]'"
    with pytest.raises(ConfigError, match=words):
        RayFleet("auto")
