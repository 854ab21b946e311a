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
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import tiny_vllm
from check_agent_kills import MARK, processes, wait_until
from cluster_traces import Answers, Seen, check_counts, check_errors, check_metrics, steps

from vf.trainer.run.run_folder import RunFolder

PARTS = {"worker": 4, "server": 3, "rank": 1, "trainer": 1}
ROLLOUTS = 8  # of one task
ENDING = 60.0  # seconds within which everything of a run must be gone

CONFIG = """\
model = "tiny"

[env]
id = "calculator"
args = {{ max_operand = 20 }}

[inference]
engine = "vllm"
executable = {executable}
replicas = {servers}
restarts_per_hour = 1000
[inference.args]
max_num_seqs = 64
token_seconds = 0.01

[rollouts]
workers = {workers}
restarts_per_hour = 1000

[trainer]
{ranks}
[trainer.args]
max_steps = {steps}
batch_size = 64
rollouts_per_example = {rollouts}
max_tokens = 64
temperature = 0.9
max_prompt_len = 256
max_seq_len = 512
learning_rate = 1e-3
lora_rank = 16
lora_alpha = 32
eval_steps = {steps}
eval_examples = 100
save_steps = 1
seed = {seed}
"""
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
        ranks = ""
        if args.ranks > 1:
            (folder / "ranks.yaml").write_text(RANKS.format(count=args.ranks))
            ranks = f"accelerate_config = {json.dumps(str(folder / 'ranks.yaml'))}"
        self.config = folder / "killed.toml"
        self.config.write_text(
            CONFIG.format(
                executable=json.dumps(shlex.join([sys.executable, tiny_vllm.__file__])),
                servers=args.servers,
                workers=args.workers,
                ranks=ranks,
                steps=args.steps,
                rollouts=ROLLOUTS,
                seed=seed,
            )
        )

    def start(self) -> None:
        """Start the run, or resume it."""
        self.starts += 1
        journals = self.root / "journals" / str(self.starts)
        journals.mkdir(parents=True)
        what = [str(self.config), "--set", "run_name=killed"]
        if self.folder.config.exists():
            what = ["--resume", str(self.folder.path)]
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
            *Answers(self.root / "journals").check(every),
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


def go_through(run: Run, rng: random.Random, time_left: Callable[[], float]) -> Counter[str]:
    """Bring a run to its end, killing parts of it while there is time; return how many of each.

    Raises:
        AssertionError: It ended badly, or left processes.
    """
    killed: Counter[str] = Counter()
    may_end_badly = False
    run.start()
    following = time.monotonic() + rng.uniform(0.5, 1.5) * run.args.every
    while True:
        while run.code is None and (time_left() <= 0 or time.monotonic() < following):
            time.sleep(0.1)
        if run.code is not None:
            wait_until(run.gone, f"no process is left: {processes(run.mark)}", ENDING)
            if run.code == 0:
                return killed
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


def main() -> int:
    """Run the checks and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--seconds", type=float, default=900.0, help="for which parts are killed")
    add("--every", type=float, default=20.0, help="seconds between two kills, on average")
    add("--seed", type=int, default=0)
    add("--steps", type=int, default=20, help="of each run")
    add("--servers", type=int, default=2)
    add("--workers", type=int, default=3)
    add("--ranks", type=int, default=2, help="trainer processes")
    add("--keep", type=Path, help="folder in which everything is kept")
    args = parser.parse_args()
    started, bad, runs = time.monotonic(), 0, 0
    killed: Counter[str] = Counter()
    while runs == 0 or time.monotonic() - started < args.seconds:
        rng = random.Random(f"{args.seed} {runs}")
        parent = args.keep
        if parent is not None:
            parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="cluster-", dir=parent))
        run = Run(folder, args, seed=args.seed + runs)
        try:
            killed += go_through(run, rng, lambda: args.seconds - (time.monotonic() - started))
            problems = run.problems()
        except AssertionError as error:
            problems = [str(error)]
        finally:
            run.stop()
        runs += 1
        bad += bool(problems)
        reward = run.reward()
        said = "nothing is wrong" if not problems else f"{len(problems)} problems; see {folder}"
        held_out = "none" if reward is None else f"{reward:.3f}"
        print(f"run {runs}: {run.starts} starts, held-out reward {held_out}, {said}", flush=True)
        for problem in problems[:20]:
            print(f"    {problem}", flush=True)
    summary = {"check": "cluster", "runs": runs, "killed": dict(killed), "failed": bad}
    print(json.dumps(summary | {"seconds": round(time.monotonic() - started)}))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
