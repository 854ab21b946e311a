"""Runs in several processes, started as `vf-rl` starts them, and what ends them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.commands.launch import _validate_launch_command, launch_command_parser

from tests.trainer.configs import configured
from tests.trainer.conftest import STEADY, small_run
from tests.trainer.saving.comparing import comparable, stored
from tests.waiting import alive, wait_until
from vf.runtime.errors import ConfigError
from vf.trainer.commands import train as command
from vf.trainer.commands.main import main
from vf.trainer.processes.devices import check_devices, check_server_devices, narrow_devices
from vf.trainer.processes.launch import (
    OUTER_DEVICES,
    Meeting,
    World,
    launcher_args,
    leave_world,
    outer_environ,
    processes_to_launch,
    uses_cpu,
    world,
)
from vf.trainer.run.run_folder import RunFolder
from vf.trainer.settings.config import Config

LAUNCH = (
    "import sys; from vf.trainer.processes.launch import launch; sys.exit(launch(2, sys.argv[1:]))"
)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return small_run(tmp_path / "mine.toml", **STEADY, lora_dropout=0.1)


def parameters(run: Path, step: int) -> dict[str, torch.Tensor]:
    return stored(run / f"checkpoints/step-{step}")


def accelerate_launch(*argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "accelerate.commands.launch", *launcher_args(2, argv)]
    return subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)


@pytest.mark.slow
def test_a_run_in_two_processes_is_written_once_and_resumes_exactly(config: Path) -> None:
    done = accelerate_launch(str(config))
    assert done.returncode == 0, done.stderr
    assert "in 2 processes" in done.stdout
    assert done.stdout.count("step    3/3") == 1
    run = config.parent / "runs" / "run"
    unbroken, final = comparable(RunFolder(run)), parameters(run, 3)
    assert [line["step"] for line in unbroken] == [1, 2, 3]
    assert any(line.get("grad_norm", 0.0) > 0 for line in unbroken[1:]), "nothing was learned"
    assert len(list((run / "traces").glob("*.jsonl"))) == 3

    for step in (2, 3):  # as if it had been stopped before
        shutil.rmtree(run / f"checkpoints/step-{step}")
    done = accelerate_launch("--resume", str(run))
    assert done.returncode == 0, done.stderr
    assert "resumed after step 1" in done.stdout
    assert comparable(RunFolder(run)) == unbroken, (
        "to the last bit: one rollout at a time meets no other"
    )
    for name, parameter in parameters(run, 3).items():
        assert torch.equal(parameter, final[name])


def ranks_of(launcher: int) -> dict[int, int]:
    """Return the process ids of a launcher's ranks."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    found = {}
    for pid in map(int, children):
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        found.update({int(v[5:]): pid for v in variables if v.startswith(b"RANK=")})
    return found


@pytest.fixture
def running(config: Path) -> Iterator[tuple[subprocess.Popen[str], dict[int, int]]]:
    """Yield the launcher of an endless run that is under way, and its ranks."""
    log = config.parent / "runs" / "run" / "metrics.jsonl"
    command = [sys.executable, "-c", LAUNCH, str(config), "--set", "max_steps=100000"]
    pids: dict[int, int] = {}
    launcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: log.exists() or launcher.poll() is not None, 120.0)
        assert launcher.poll() is None
        pids = ranks_of(launcher.pid)
        assert sorted(pids) == [0, 1]
        yield launcher, pids
    finally:
        for pid in (launcher.pid, *pids.values()):
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        launcher.communicate()


@pytest.mark.skipif(sys.platform != "linux", reason="finds the processes in /proc")
@pytest.mark.slow
class TestAnEndlessRun:
    def test_ends_when_a_follower_is_killed(self, running: Any) -> None:
        launcher, pids = running
        os.kill(pids[1], signal.SIGKILL)
        _, said = launcher.communicate(timeout=60)
        assert launcher.returncode == 1
        assert "trainer process 1 of 2 was killed by SIGKILL" in said
        assert not any(map(alive, pids.values()))

    def test_ends_when_the_launcher_is_killed(self, running: Any) -> None:
        launcher, pids = running
        launcher.kill()
        wait_until(lambda: not any(map(alive, pids.values())))

    def test_it_stops_in_order_when_asked_to(self, running: Any) -> None:
        launcher, pids = running
        launcher.terminate()
        _, said = launcher.communicate(timeout=120)
        assert launcher.returncode == 128 + signal.SIGTERM
        assert "stopped by SIGTERM; finished traces and checkpoints are kept" in said
        assert not any(map(alive, pids.values()))


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Restore, after the test, whatever it does to the variables that matter here."""
    for name in ("CUDA_VISIBLE_DEVICES", OUTER_DEVICES, "RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return monkeypatch


def with_gpus(gpus: int | list[int] | None) -> Any:
    trainer = {} if gpus is None else {"gpus": gpus}
    return configured(trainer=trainer)


@pytest.mark.parametrize(
    ("gpus", "outer", "seen"),
    [
        (2, None, "0,1"),
        ([3, 1], None, "3,1"),
        (2, "4,5,6", "4,5"),
        ([2], "GPU-a, GPU-b,GPU-c", "GPU-c"),
        (None, "4,5", "4,5"),
    ],
)
def test_devices_are_numbered_among_those_that_were_visible_and_given_back(
    environ: pytest.MonkeyPatch, gpus: Any, outer: str | None, seen: str
) -> None:
    if outer is not None:
        environ.setenv("CUDA_VISIBLE_DEVICES", outer)
    for _ in range(2):  # the processes that are launched do it again
        narrow_devices(with_gpus(gpus))
        assert os.environ["CUDA_VISIBLE_DEVICES"] == seen
    leave_world()
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == outer
    assert OUTER_DEVICES not in os.environ


def test_a_device_that_is_not_visible_is_refused(environ: pytest.MonkeyPatch) -> None:
    environ.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    with pytest.raises(ConfigError, match=r"trainer\.gpus = \[0, 2\] names device 2, but"):
        narrow_devices(with_gpus([0, 2]))


def test_devices_that_are_all_hidden_stay_so(environ: pytest.MonkeyPatch) -> None:
    environ.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ConfigError, match="CUDA_VISIBLE_DEVICES = '' leaves 0"):
        narrow_devices(with_gpus(1))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(
    ("found", "size", "said"),
    [
        (0, 1, r"trainer\.gpus = \[0, 1\], but torch finds no CUDA device"),
        (1, 1, r"trainer\.gpus = \[0, 1\]: not all of these CUDA devices exist"),
        (2, 3, "asks for 2 processes, but the launcher started 3"),
    ],
)
def test_devices_that_do_not_fit_are_refused(
    environ: pytest.MonkeyPatch, found: int, size: int, said: str
) -> None:
    environ.setattr(torch.cuda, "device_count", lambda: found)
    environ.setenv("WORLD_SIZE", str(size))
    config = with_gpus([0, 1])
    narrow_devices(config)
    with pytest.raises(ConfigError, match=said):
        check_devices(config)


def test_devices_are_only_chosen_for_runs_that_the_command_starts(
    environ: pytest.MonkeyPatch,
) -> None:
    environ.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigError, match="only in runs that `vf-rl` starts"):
        check_devices(with_gpus(2))


def test_without_cuda_gpus_are_refused_before_anything_is_made(
    config: Path, environ: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environ.setattr(torch.cuda, "device_count", lambda: 0)
    assert main([str(config), "--set", "trainer.gpus=[0, 1]"]) == 2
    assert "trainer.gpus = [0, 1], but torch finds no CUDA device" in capsys.readouterr().err
    assert not (config.parent / "runs").exists()


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (0, r"inference\.gpus = \[2\], but torch finds no CUDA device"),
        (2, r"inference\.gpus = \[2\] names device 2, but there are 2, numbered from 0"),
    ],
)
def test_devices_of_the_server_that_do_not_exist_are_refused(
    environ: pytest.MonkeyPatch, found: int, said: str
) -> None:
    environ.setattr(torch.cuda, "device_count", lambda: found)
    with pytest.raises(ConfigError, match=said):
        check_server_devices(configured(inference={"engine": "vllm", "gpus": [2]}))


def test_the_command_launches_one_process_for_each_device(
    config: Path, environ: pytest.MonkeyPatch
) -> None:
    launched: list[tuple[int, list[str], str | None, str]] = []
    before = dict(os.environ)

    def launch(count: int, argv: list[str], config_file: str | None) -> int:
        launched.append((count, argv, config_file, os.environ["CUDA_VISIBLE_DEVICES"]))
        return 7

    environ.setattr(torch.cuda, "device_count", lambda: 2)
    environ.setattr(command, "launch", launch)
    argv = [str(config), "--set", "trainer.gpus=[2, 0]"]
    assert main(argv) == 7
    assert launched == [(2, argv, None, "2,0")]
    outer = outer_environ()  # what an inference server is started with
    assert {name: outer.get(name) for name in before} == before
    assert "CUDA_VISIBLE_DEVICES" not in outer


def with_accelerate(path: Path, **trainer: Any) -> Config:
    """Return a config that names a file of Accelerate's."""
    return configured(trainer={"accelerate_config": str(path), **trainer})


def test_an_accelerate_config_says_how_many_processes_there_are_and_what_they_share(
    tmp_path: Path,
) -> None:
    path = Path(__file__).parents[3] / "configs" / "accelerate" / "fsdp2.yaml"
    assert processes_to_launch(with_accelerate(path)) == 2
    assert processes_to_launch(with_accelerate(path, gpus=3)) == 3
    arguments = launch_command_parser().parse_args(launcher_args(3, ["run.toml"], str(path)))
    settled, _, _ = _validate_launch_command(arguments)
    assert (settled.use_fsdp, settled.fsdp_version, settled.num_processes) == (True, 2, 3)
    assert (settled.training_script, settled.training_script_args) == (
        "vf.trainer.commands.main",
        ["run.toml"],
    )


def test_an_accelerate_config_for_cpus_starts_all_its_processes(tmp_path: Path) -> None:
    path = tmp_path / "cpus.yaml"
    path.write_text("distributed_type: MULTI_CPU\nnum_processes: 2\nuse_cpu: true\n")
    arguments = launch_command_parser().parse_args(launcher_args(2, ["run.toml"], str(path)))
    settled, _, _ = _validate_launch_command(arguments)
    assert (settled.multi_gpu, settled.cpu, settled.num_processes) == (True, False, 2)
    assert uses_cpu(with_accelerate(path))


def test_accelerates_variable_asks_for_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not uses_cpu(configured())
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert uses_cpu(configured())


@pytest.mark.parametrize("config_file", [None, "fsdp2.yaml", "deepspeed.yaml"])
def test_processes_on_machines_of_their_own_meet_at_the_first(config_file: str | None) -> None:
    folder = Path(__file__).parents[3] / "configs" / "accelerate"
    path = None if config_file is None else str(folder / config_file)
    meeting = Meeting(1, "10.0.0.1", 20123)
    arguments = launch_command_parser().parse_args(launcher_args(2, ["run.toml"], path, meeting))
    settled, _, _ = _validate_launch_command(arguments)
    assert (settled.num_processes, settled.num_machines, settled.machine_rank) == (2, 2, 1)
    assert (settled.main_process_ip, settled.main_process_port) == ("10.0.0.1", 20123)
    assert (settled.same_network, settled.rdzv_backend) == (True, "static")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "accelerate_config = .*no.yaml"),
        ("nonsense: 3\n", "accelerate_config = .*distributed_type"),
        ("distributed_type: FSDP\nnum_machines: 2\nnum_processes: 4\n", "is for 2 machines"),
    ],
)
def test_an_accelerate_config_that_is_wrong_is_reported(
    text: str | None, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "no.yaml"
    if text is not None:
        path.write_text("compute_environment: LOCAL_MACHINE\n" + text)
    with pytest.raises(ConfigError, match=words):
        processes_to_launch(with_accelerate(path))


def test_children_of_a_rank_do_not_take_themselves_for_one(environ: pytest.MonkeyPatch) -> None:
    environ.setenv("WORLD_SIZE", "2")
    environ.setenv("RANK", "1")
    environ.setenv("MASTER_ADDR", "127.0.0.1")
    assert world() == World(1, 2)
    leave_world()
    assert world() == World(0, 1)
    assert "MASTER_ADDR" not in os.environ
