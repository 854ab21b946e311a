"""`vf-rl` on a Ray cluster: a machine that is lost, a run that is submitted, what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.ray_machines import Machines, job_server, machines
from tests.trainer.conftest import STEADY, VfRl, small_run
from tests.waiting import wait_until
from vf.trainer.run.run_folder import RunFolder

__all__ = ["job_server", "machines"]

ROLLOUTS = 16
CPUS = "distributed_type: MULTI_CPU\nnum_processes: 2\nuse_cpu: true\n"
CLUSTER = """
rollouts.workers = 1
[cluster]
backend = "ray"
address = {address!r}
rank.cpus = 2
"""

# Nothing begins after the first checkpoint until a file is there: the run cannot end before that.
HELD = """
import asyncio
from pathlib import Path
from vf.environments.bundled.calculator import Calculator

class Held(Calculator):
    async def reset(self, task):
        while Path({checkpoint!r}).exists() and not Path({released!r}).exists():
            await asyncio.sleep(0.05)
        return self.first_messages(task)
"""


def toml(folder: Path, address: str) -> Path:
    return small_run(
        folder / "mine.toml", CLUSTER.format(address=address), **STEADY | {"max_concurrent": 64}
    )


@contextmanager
def running(folder: Path, *argv: str) -> Iterator[subprocess.Popen[str]]:
    """Run the command, with its output in a file."""
    command = [sys.executable, "-m", "vf.trainer.commands.main", *argv]
    with (folder / "output").open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def ranks_of(run: Path) -> dict[int, str]:
    """Return the machines of a run's ranks."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            text = (process / "environ").read_bytes()
        except OSError:  # it has ended
            continue
        if os.fsencode(run) in words and b"vf.trainer.commands.main" in words[:4]:
            variables = dict(each.partition("=")[::2] for each in text.decode().split("\0"))
            if "RANK" in variables:
                found[int(variables["RANK"])] = variables["VF_HOST"]
    return found


def check_whole(run: RunFolder, steps: int) -> None:
    """See that every step has its traces and its line, once."""
    assert [line["step"] for line in run.read_metrics()] == list(range(1, steps + 1))
    for step in range(1, steps + 1):
        assert len(run.step_traces(step).path.read_text().splitlines()) == ROLLOUTS


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_lost_machine_costs_no_step_and_no_trace(machines: Machines, tmp_path: Path) -> None:
    (tmp_path / "cpus.yaml").write_text(CPUS)
    path, run = toml(tmp_path, machines.address), RunFolder(tmp_path / "runs" / "run")
    ranks, held = f"trainer.accelerate_config={tmp_path / 'cpus.yaml'}", tmp_path / "held_env.py"
    first, released = run.checkpoints / "step-1", tmp_path / "released"
    held.write_text(HELD.format(checkpoint=str(first), released=str(released)))
    settings = ("--set", ranks, "--set", f"env.id={held}:Held")
    with running(tmp_path, str(path), *settings) as process:

        def said() -> str:
            return (tmp_path / "output").read_text()

        wait_until(lambda: first.exists() or process.poll() is not None, 1000)
        assert process.poll() is None, said()
        hosts = ranks_of(run.path)
        assert len(set(hosts.values())) == 2
        victim = next(rank for rank, host in hosts.items() if host != "127.0.1.1")
        machines.add()
        machines.lose(hosts[victim])
        wait_until(lambda: "starts again" in said() or process.poll() is not None, 1000)
        released.touch()
        assert process.wait(1000) == 0, said()
    assert f"trainer process {victim} on {hosts[victim]} was lost" in said()
    assert "starts again from the last checkpoint" in said()
    assert "resumed after step" in said()
    check_whole(run, 3)
    wait_until(lambda: ranks_of(run.path) == {})


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_run_is_submitted_with_its_folder_and_its_output_comes_back(
    job_server: Machines, tmp_path: Path
) -> None:
    (tmp_path / "laptop").mkdir()
    (tmp_path / "laptop" / "mine_env.py").write_text(
        "from vf.environments.bundled.calculator import Calculator\n"
        "class Mine(Calculator):\n    pass\n"
    )
    path = toml(tmp_path / "laptop", job_server.url)
    env = "env.id=mine_env.py:Mine"
    path.write_text(path.read_text().replace('"calculator"', '"mine_env.py:Mine"'))
    ranks = ["--set", "max_steps=1", "--set", "cluster.rank.cpus=1"]  # beside a worker
    with running(tmp_path, str(path), *ranks) as process:
        assert process.wait(300) == 0, (tmp_path / "output").read_text()
    said = (tmp_path / "output").read_text()
    assert "Ctrl-C leaves it running" in said
    assert "1/1" in said
    check_whole(RunFolder(tmp_path / "laptop" / "runs" / "run"), 1)
    with running(tmp_path, str(path), "--set", env) as process:
        assert process.wait(120) == 2, "the name is taken"
    assert "exists and is never overwritten" in (tmp_path / "output").read_text()


URL = "--set cluster.address=http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (f"{URL} --set trainer.args.output_dir=runs", "is relative"),
        (f"{URL} --set cluster.runtime_env.working_dir=/opt", "hold"),
        (
            f"{URL} --set cluster.runtime_env.working_dir=s3://b/c.zip",
            "is not a folder of",
        ),
        ("--set cluster.address=127.0.0.1:9", "cannot be reached from here"),
        ("--tmux", "this one is on a cluster"),
    ],
)
def test_what_a_cluster_cannot_take_is_reported_at_once(
    tmp_path: Path, vf_rl: VfRl, argv: str, words: str
) -> None:
    pytest.importorskip("ray")
    code, _, err = vf_rl(toml(tmp_path, "auto"), *argv.split())
    assert code == 2
    assert words in err
