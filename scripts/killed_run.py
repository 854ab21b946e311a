"""A training run whose parts are killed: how it is started and resumed, and what its parts are."""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tiny_vllm
from killing import MARK, processes

from vf.runtime.command import FAILED
from vf.trainer.run.run_folder import RunFolder

if TYPE_CHECKING:
    from ray_machines import Machines
    from sandbox_hosts import SandboxHosts

QUICKSTART = Path(__file__).parent.parent / "configs" / "quickstart.toml"
BOXED = Path(__file__).with_name("boxed_calculator.py")
RANKS = """\
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_CPU
num_machines: 1
num_processes: {count}
use_cpu: true
"""
OFTEN = 1000  # restarts within an hour
# What Ray runs by itself on a machine, whether a run is there or not.
RAYS_OWN = (
    *("/ray/core/src/", "/ray/dashboard/", "/ray/_private/", "/ray/autoscaler/"),
    *("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent"),
)


class KilledRun:
    """A run of the quickstart's TOML, from its first start to completion.

    Args:
        folder: For everything that it writes.
        args: Of the command line.
        seed: Of the run.
        machines: Of a Ray cluster; None for this machine alone.
        hosts: Of sandboxes, in which the environment then works; None for none.
        mark: What its processes' environment holds.
    """

    def __init__(
        self,
        folder: Path,
        args: argparse.Namespace,
        *,
        seed: int,
        machines: Machines | None,
        hosts: SandboxHosts | None,
        mark: str,
    ) -> None:
        self.root, self.args, self.mark = folder, args, mark
        self.machines, self.hosts = machines, hosts
        self.folder = RunFolder(folder / "runs" / "killed")
        self.log = folder / "log"
        self.journals = folder / "journals"
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._settings = {
            "trainer.args.output_dir": str(folder / "runs"),
            "trainer.args.run_name": "killed",
            "trainer.args.max_steps": args.steps,
            "trainer.args.eval_steps": args.steps,
            "trainer.args.save_steps": 1,
            "trainer.args.seed": seed,
        }
        if not args.one_machine:
            self._settings |= self._apart()
        if hosts is not None:
            self._settings |= {"env.id": str(BOXED), "env.args.hosts": hosts.addresses}
        if machines is not None:
            self._settings |= {
                "cluster.backend": "ray",
                "cluster.address": machines.address,
                "cluster.restarts_per_hour": OFTEN,
            }

    def _apart(self) -> dict[str, Any]:
        """Return the settings that put the run's parts into processes of their own."""
        settings: dict[str, Any] = {
            "inference.engine": "vllm",
            "inference.executable": shlex.join([sys.executable, tiny_vllm.__file__]),
            "inference.replicas": self.args.servers,
            "inference.restarts_per_hour": OFTEN,
            "inference.args.max_num_seqs": 64,
            "inference.args.token_seconds": 0.01,
            "rollouts.workers": self.args.workers,
            "rollouts.restarts_per_hour": OFTEN,
        }
        if self.args.ranks > 1:
            ranks = self.root / "ranks.yaml"
            ranks.write_text(RANKS.format(count=self.args.ranks))
            settings["trainer.accelerate_config"] = str(ranks)
        return settings

    def start(self) -> None:
        """Start the run, or resume it."""
        self.starts += 1
        journals = self.journals / str(self.starts)
        journals.mkdir(parents=True)
        what = [str(QUICKSTART)]
        for name, value in self._settings.items():
            what += ["--set", f"{name}={json.dumps(value)}"]
        if self.folder.config.exists():
            what = ["--resume", str(self.folder.path)]
        else:  # killed as it began
            shutil.rmtree(self.folder.path, ignore_errors=True)
        environ = {"TINY_VLLM_JOURNAL": str(journals), "OMP_NUM_THREADS": "1", MARK: self.mark}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "vf.trainer.commands.main", *what],
                cwd=self.root,
                env=os.environ | environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def code(self) -> int | None:
        """The run's exit code; None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def parts(self) -> dict[str, dict[str, Callable[[], None]]]:
        """Return what kills each part that is there, by what it is and by its name."""
        found: dict[str, dict[str, Callable[[], None]]] = {}
        for pid, line in sorted(self.left().items()):
            if part := self._part(pid, line):
                found.setdefault(part, {})[str(pid)] = partial(kill, pid)
        if self.machines is not None:
            found["machine"] = self.machines.victims()
        if self.hosts is not None:
            found["host"] = self.hosts.victims()
        return found

    def _part(self, pid: int, line: str) -> str | None:
        """Return what a process of the run is; on a cluster ``trainer`` is what started it."""
        part = part_of(pid, line)
        assert self._process is not None
        if self.machines is not None and part == "trainer" and pid != self._process.pid:
            return "rank"
        return part

    def codes(self, part: str) -> set[int]:
        """Return the exit codes with which the run may end when a part of this kind is killed."""
        if self.machines is not None:  # all but what was started here is placed again
            return {-signal.SIGKILL} if part == "trainer" else set()
        return {-signal.SIGKILL, FAILED} if part in ("trainer", "rank") else set()

    def left(self) -> dict[int, str]:
        """Return the command lines of the run's processes."""
        every = processes(self.mark)
        return {pid: line for pid, line in every.items() if not any(o in line for o in RAYS_OWN)}

    def reward(self) -> float | None:
        """Return the held-out reward at the end."""
        lines = self.folder.read_metrics()
        return lines[-1].get("eval/reward/mean") if lines else None

    def stop(self) -> None:
        """Kill what is left."""
        for pid in self.left():
            kill(pid)
        if self._process is not None:
            self._process.wait()


def part_of(pid: int, line: str) -> str | None:
    """Return what a process of a run is, by its command line; None for a guard."""
    words = line.split()
    if "lifeline.py" in line:
        return None
    if "vf.trainer.processes.rank" in words:
        return "rank"
    if "vf.trainer.commands.main" in words:  # with the settings, which name the others' programs
        return "rank" if rank_of(pid) else "trainer"
    if "vf.trainer.collecting.worker" in words:
        return "worker"
    return "server" if "tiny_vllm.py" in line else None


def rank_of(pid: int) -> int:
    """Return which rank a launcher made of a process; 0 for one that it did not start."""
    with suppress(OSError):
        for each in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if each.startswith(b"RANK="):
                return int(each[5:])
    return 0


def kill(pid: int) -> None:
    """Send SIGKILL; the process may have ended by now."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def draw(
    rng: random.Random, parts: dict[str, dict[str, Callable[[], None]]], shares: dict[str, int]
) -> tuple[str, str, Callable[[], None]] | None:
    """Choose a part; None if there is none.

    Args:
        rng: Chooses.
        parts: As :meth:`KilledRun.parts` returns them.
        shares: How often which kind.
    """
    there = {part: victims for part, victims in parts.items() if victims}
    if not there:
        return None
    part = rng.choices([*there], [shares[each] for each in there])[0]
    name = rng.choice(sorted(there[part]))
    return part, name, there[part][name]
