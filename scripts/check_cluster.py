"""Kill parts of training runs every few seconds, and see that nothing is lost, left or made up.

    python scripts/check_cluster.py --seconds 900 --every 20 --seed 0

One run after the other trains the tiny model on the quickstart's task, with rollout workers,
several inference servers (:mod:`tiny_vllm`) and two trainer ranks. Meanwhile SIGKILL goes to one of
its processes, which a seeded draw chooses: a worker, a server, a trainer rank, or rank 0, in which
everything is decided. A run whose trainer was killed is resumed; everything else must come back by
itself. After each run:

- it has ended well, with a line of metrics for each step;
- every rollout of every group is on disk once, and none that was on disk before a kill is lost or
  changed;
- no rollout counts as failed, for only parts of the run were killed;
- every answer of every trace was given by a server from weights of the version that the trace says,
  as the servers' own journals have it;
- none of its processes is left.

Prints a line for each kill and each run, and ends with 1 if anything did not hold.
"""

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
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tiny_vllm
from check_agent_kills import MARK, processes, wait_until
from cluster_traces import Answers, Seen, check_counts, check_errors, check_metrics, steps

from vf.trainer.run.run_folder import RunFolder

PARTS = {"worker": 4, "server": 3, "rank": 1, "trainer": 1}
ROLLOUTS = 8  # of one task
SHOWN = 20  # problems of one run
ENDING = 60.0  # seconds within which everything of a run must be gone

QUICKSTART = Path(__file__).parent.parent / "configs" / "quickstart.toml"
RANKS = """\
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_CPU
num_machines: 1
num_processes: {count}
use_cpu: true
"""


class Run:
    """A training run, from its first start to its end.

    Args:
        folder: For everything that it writes.
        args: Of the command line.
        seed: Of the run.
    """

    def __init__(self, folder: Path, args: argparse.Namespace, seed: int) -> None:
        self.root, self.args, self.mark = folder, args, folder.name
        self.folder = RunFolder(folder / "runs" / "killed")
        self.starts = 0
        self.trainer: subprocess.Popen[bytes] | None = None
        self.seen = Seen()
        self.settings = {
            "trainer.args.output_dir": str(folder / "runs"),
            "trainer.args.run_name": "killed",
            "trainer.args.max_steps": args.steps,
            "trainer.args.eval_steps": args.steps,
            "trainer.args.save_steps": 1,
            "trainer.args.seed": seed,
        }
        if not args.one_machine:
            self.settings |= self._cluster()

    def _cluster(self) -> dict[str, Any]:
        """Return the settings that put the run's parts into processes of their own."""
        settings: dict[str, Any] = {
            "inference.engine": "vllm",
            "inference.executable": shlex.join([sys.executable, tiny_vllm.__file__]),
            "inference.replicas": self.args.servers,
            "inference.restarts_per_hour": 1000,
            "inference.args.max_num_seqs": 64,
            "inference.args.token_seconds": 0.01,
            "rollouts.workers": self.args.workers,
            "rollouts.restarts_per_hour": 1000,
        }
        if self.args.ranks > 1:
            ranks = self.root / "ranks.yaml"
            ranks.write_text(RANKS.format(count=self.args.ranks))
            settings["trainer.accelerate_config"] = str(ranks)
        return settings

    def start(self) -> None:
        """Start the run, or resume it."""
        self.starts += 1
        journals = self.root / "journals" / str(self.starts)
        journals.mkdir(parents=True)
        what = [str(QUICKSTART)]
        for name, value in self.settings.items():
            what += ["--set", f"{name}={json.dumps(value)}"]
        if self.folder.config.exists():
            what = ["--resume", str(self.folder.path)]
        else:  # killed as it began
            shutil.rmtree(self.folder.path, ignore_errors=True)
        with (self.root / "log").open("ab") as log:
            self.trainer = subprocess.Popen(
                [sys.executable, "-m", "vf.trainer.commands.main", *what],
                cwd=self.root,
                env=os.environ
                | {MARK: self.mark, "TINY_VLLM_JOURNAL": str(journals), "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def parts(self) -> dict[str, list[int]]:
        """Return the processes that can be killed, by what they are."""
        found: dict[str, list[int]] = {part: [] for part in PARTS}
        for pid, line in sorted(processes(self.mark).items()):
            if part := part_of(pid, line):
                found[part].append(pid)
        return found

    @property
    def code(self) -> int | None:
        """The run's exit code; None while it runs."""
        assert self.trainer is not None
        return self.trainer.poll()

    def gone(self) -> bool:
        """Return whether no process of the run is left."""
        return not processes(self.mark)

    def problems(self) -> list[str]:
        """Return what does not hold of a run that has ended."""
        traces = steps(self.folder.path)
        every = [trace for found in traces.values() for trace in found]
        return [
            *self.seen.lost(self.folder.path),
            *check_counts(traces, rollouts=ROLLOUTS, most=self.args.steps),
            *check_metrics(self.folder, traces, self.args.steps),
            *check_errors(every),
            *([] if self.args.one_machine else Answers(self.root / "journals").check(every)),
        ]

    def reward(self) -> float | None:
        """Return the held-out reward at the end."""
        lines = self.folder.read_metrics()
        return lines[-1].get("eval/reward/mean") if lines else None

    def stop(self) -> None:
        """Kill what is left."""
        for pid in processes(self.mark):
            kill(pid)
        if self.trainer is not None:
            self.trainer.wait()


def part_of(pid: int, line: str) -> str | None:
    """Return what a process of a run is, by its command line; None for a guard or a launcher."""
    if "lifeline.py" in line:
        return None
    if "tiny_vllm.py" in line:
        return "server"
    if "vf.trainer.collecting.worker" in line:
        return "worker"
    if "vf.trainer.commands.main" not in line:
        return None
    with suppress(OSError):
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        rank = next((each[5:] for each in environ if each.startswith(b"RANK=")), None)
        return "rank" if rank not in (None, b"0") else "trainer"
    return None


def kill(pid: int) -> None:
    """Send SIGKILL; the process may have ended by now."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def go_through(
    run: Run, rng: random.Random, left: Callable[[], float], killed: Counter[str]
) -> None:
    """Bring a run to its end, killing parts of it while there is time.

    Args:
        run: It is started here.
        rng: Draws what is killed, and when.
        left: Returns the seconds that are left for it.
        killed: Counts what was killed.

    Raises:
        AssertionError: It ended badly, or left processes.
    """
    may_end_badly = False
    run.start()
    following = time.monotonic() + rng.uniform(0.5, 1.5) * run.args.every
    while True:
        while run.code is None and (left() <= 0 or time.monotonic() < following):
            time.sleep(0.1)
        if run.code is not None:
            wait_until(run.gone, f"no process is left: {processes(run.mark)}", ENDING)
            if run.code == 0:
                return
            assert may_end_badly, f"the run ended with {run.code}; see {run.root / 'log'}"
            may_end_badly = False
            run.start()
            continue
        following = time.monotonic() + rng.uniform(0.5, 1.5) * run.args.every
        run.seen.look(run.folder.path)
        there = {part: pids for part, pids in run.parts().items() if pids}
        if not there:
            continue
        part = rng.choices([*there], [PARTS[each] for each in there])[0]
        pid = rng.choice(there[part])
        kill(pid)
        killed[part] += 1
        may_end_badly = may_end_badly or part in ("rank", "trainer")
        print(f"  killed {part} {pid}, after {len(run.seen.lines)} rollouts", flush=True)


@dataclass(frozen=True)
class Found:
    """What came of a run: what was killed, its held-out reward, and what did not hold."""

    killed: Counter[str]
    reward: float | None
    problems: list[str]


def check(args: argparse.Namespace, number: int, left: Callable[[], float]) -> Found:
    """Bring one run to its end, and look at what it has left."""
    if args.keep is not None:
        args.keep.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="cluster-", dir=args.keep))
    run, killed = Run(folder, args, seed=args.seed + number), Counter[str]()
    try:
        go_through(run, random.Random(f"{args.seed} {number}"), left, killed)
        problems = run.problems()
    except AssertionError as error:
        problems = [str(error)]
    finally:
        run.stop()
    reward = run.reward()
    held_out = "none" if reward is None else f"{reward:.3f}"
    said = f"{len(problems)} problems; see {folder}" if problems else "nothing is wrong"
    print(f"run {number}: {run.starts} starts, held-out reward {held_out}, {said}", flush=True)
    for problem in problems[:SHOWN]:
        print(f"    {problem}", flush=True)
    if not problems and args.keep is None:
        shutil.rmtree(folder)
    return Found(killed, reward, problems)


def main() -> int:
    """Run the checks and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--seconds", type=float, default=900.0, help="for which parts are killed; 0 kills none")
    add("--every", type=float, default=20.0, help="seconds between two kills, on average")
    add("--runs", type=int, default=1, help="at least so many")
    add("--seed", type=int, default=0)
    add("--steps", type=int, default=20, help="of each run")
    add("--servers", type=int, default=2)
    add("--workers", type=int, default=3)
    add("--ranks", type=int, default=2, help="trainer processes")
    add("--one-machine", action="store_true", help="run the TOML as it is, to compare with")
    add("--keep", type=Path, help="folder in which everything is kept")
    args = parser.parse_args()
    started, found = time.monotonic(), []

    def left() -> float:
        return args.seconds - (time.monotonic() - started)

    while len(found) < args.runs or left() > 0:
        found.append(check(args, len(found), left))
    killed = sum((each.killed for each in found), Counter[str]())
    bad = sum(bool(each.problems) for each in found)
    summary = {"check": "cluster", "runs": len(found), "failed": bad, "killed": dict(killed)}
    summary |= {"held_out": [each.reward for each in found]}
    print(json.dumps(summary | {"seconds": round(time.monotonic() - started)}))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
