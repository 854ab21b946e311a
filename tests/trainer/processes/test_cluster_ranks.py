"""The trainer's processes as a cluster has them: placed by a fleet, and again after a loss."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.trainer.conftest import STEADY, small_run
from tests.trainer.saving.comparing import comparable
from tests.waiting import wait_until
from vf.cluster.fleet import Command, Resources, Role
from vf.cluster.local_fleet import LocalFleet, LocalHandle
from vf.cluster.ray_node import HERE_ONLY, elsewhere
from vf.runtime.errors import PlacementError
from vf.trainer.commands.on_cluster import resume_later
from vf.trainer.processes.cluster_ranks import Ranks, run_ranks
from vf.trainer.processes.launch import OWN_HOST
from vf.trainer.processes.rank import interface_of, name_interface
from vf.trainer.run.run_folder import RunFolder, make_folder
from vf.trainer.saving.checkpoint_files import set_aside_later
from vf.trainer.settings.load_config import load_config
from vf.trainer.settings.write_config import to_toml


class Machines(LocalFleet):
    """This machine, which counts what it is asked for, and can be out of reach for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.reserve([("rank", 2, Resources())])
        self.placed: list[LocalHandle] = []
        self.away = 0

    def place(self, role: Role, resources: Resources, command: Command) -> LocalHandle:
        if self.away:
            self.away -= 1
            raise PlacementError("the machine of a rank was lost")
        self.placed.append(super().place(role, resources, command))
        return self.placed[-1]


@pytest.fixture
def fleet() -> Iterator[Machines]:
    made = Machines()
    yield made
    made.stop()


def begun(folder: Path, **settings: object) -> RunFolder:
    """Return the folder of a run that has not begun, as a cluster's launcher makes it."""
    folder.mkdir()
    path = small_run(folder / "mine.toml", **STEADY)
    config, _ = load_config(path, [f"{name}={value}" for name, value in settings.items()])
    run = make_folder(config, path.stem)
    run.write_config(to_toml(config))
    run.close()
    return run


def ranks_of(run: RunFolder) -> dict[int, int]:
    """Return the process ids of a run's ranks."""
    found: dict[int, int] = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            variables = (process / "environ").read_bytes().split(b"\0")
        except OSError:  # it has ended, or is another user's
            continue
        if os.fsencode(run.path) in words and b"vf.trainer.commands.main" in words[:4]:
            found |= {int(v[5:]): int(process.name) for v in variables if v.startswith(b"RANK=")}
    return found


def test_a_wrong_setting_is_no_loss(fleet: Machines) -> None:
    said: list[str] = []
    code = run_ranks(
        fleet, Ranks(1, Resources(), ["none.toml"]), restarts_per_hour=3, say=said.append
    )
    assert code == 2
    assert said == []
    assert len(fleet.placed) == 1


def test_a_machine_that_is_lost_again_and_again_ends_the_run(fleet: Machines) -> None:
    fleet.away = 5
    said: list[str] = []
    ranks = Ranks(2, Resources(), ["--help"])
    assert run_ranks(fleet, ranks, restarts_per_hour=2, say=said.append) == 1
    assert fleet.away == 2
    assert (
        said[:2]
        == ["the machine of a rank was lost; the trainer starts again from the last checkpoint"] * 2
    )
    assert "cluster.restarts_per_hour = 2" in said[2]


def test_after_a_loss_the_processes_are_placed_again(fleet: Machines) -> None:
    fleet.away = 1
    ranks = Ranks(1, Resources(), ["--help"])
    assert run_ranks(fleet, ranks, restarts_per_hour=1, say=print) == 0
    assert len(fleet.placed) == 1


def test_a_later_start_does_not_go_back_again(fleet: Machines, tmp_path: Path) -> None:
    """``--from`` holds until the earlier checkpoint was loaded, and no longer."""
    checkpoints = tmp_path / "checkpoints"
    for step in (1, 2):
        (checkpoints / f"step-{step}").mkdir(parents=True)
        (checkpoints / f"step-{step}" / "progress.json").write_text("{}")
    args = argparse.Namespace(resume=tmp_path, checkpoint="step-1")
    argv = ["--resume", str(tmp_path), "--from", "step-1"]
    again = resume_later(args, argv)
    assert again() == argv
    set_aside_later(checkpoints, 1)  # as loading it does
    assert again() == argv[:2]
    (checkpoints / "step-2").mkdir()
    (checkpoints / "step-2" / "progress.json").write_text("{}")
    assert again() == argv[:2]
    fleet.away = 1
    ranks = Ranks(1, Resources(), ["none.toml"], again=lambda: ["--help"])
    assert run_ranks(fleet, ranks, restarts_per_hour=1, say=print) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="finds the processes in /proc")
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_costs_no_step_and_no_trace(
    fleet: Machines, tmp_path: Path, victim: int
) -> None:
    def ranks(run: RunFolder) -> Ranks:
        return Ranks(2, Resources(), ["--resume", str(run.path)])

    unbroken = begun(tmp_path / "unbroken")
    assert run_ranks(fleet, ranks(unbroken), restarts_per_hour=0, say=print) == 0
    run, said = begun(tmp_path / "broken"), list[str]()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_ranks, fleet, ranks(run), restarts_per_hour=1, say=said.append)
        wait_until(lambda: (run.checkpoints / "step-1").exists() or running.done(), 120)
        os.kill(ranks_of(run)[victim], signal.SIGKILL)
        assert running.result(300) == 0
    assert said == [
        f"trainer process {victim} on 127.0.0.1 was killed by SIGKILL; the trainer starts again "
        "from the last checkpoint"
    ]
    assert ranks_of(run) == {}
    assert comparable(run) == comparable(unbroken), "to the last bit"
    for step in (1, 2, 3):
        assert len(run.step_traces(step).path.read_text().splitlines()) == 16


def test_the_interface_of_an_address_is_found() -> None:
    assert interface_of("127.0.0.1") == interface_of("127.0.0.7")
    assert interface_of("192.0.2.1") is None  # of nobody: RFC 5737


def test_the_interface_that_was_chosen_here_does_not_go_to_other_machines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "environ", {OWN_HOST: "127.0.0.1", "NCCL_SOCKET_IFNAME": "eth7"})
    name_interface()
    assert os.environ["GLOO_SOCKET_IFNAME"] == interface_of("127.0.0.1")
    sent = {OWN_HOST: "127.0.0.1", "NCCL_SOCKET_IFNAME": "eth7"}  # the user's choice
    assert elsewhere(os.environ) == sent
    assert os.environ[HERE_ONLY] == "GLOO_SOCKET_IFNAME"
