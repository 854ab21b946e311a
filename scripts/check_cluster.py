"""Kill parts of training runs every few seconds, and see that nothing is lost, left or made up.

    python scripts/check_cluster.py --seconds 900 --every 20 --seed 0

One run after the other trains the tiny model on the quickstart's task, with rollout workers,
several inference servers (:mod:`tiny_vllm`) and two trainer ranks. Meanwhile SIGKILL goes to one of
its processes, which a seeded draw chooses: a worker, a server, a trainer rank, rank 0, in which
everything is decided, or with ``--hosts`` an engine with all the sandboxes that it holds. A run
whose trainer was killed is resumed; everything else must come back by itself. After each run:

- it has ended well, with a line of metrics for each step;
- every rollout of every group is on disk once, and none that was on disk before a kill is lost or
  changed;
- no rollout counts as failed, for only parts of the run were killed;
- every answer of every trace was given by a server from weights of the version that the trace says,
  as the servers' own journals have it;
- none of its processes is left, and no container.

Prints a line for each kill and each run, and ends with 1 if anything did not hold.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cluster_traces import Answers, Seen, check_counts, check_errors, check_metrics, steps
from killed_run import KilledRun, draw
from killing import wait_until

if TYPE_CHECKING:
    from ray_machines import Machines
    from sandbox_hosts import SandboxHosts

SHARES = {"worker": 4, "server": 3, "rank": 1, "trainer": 1, "machine": 2, "host": 3}
ROLLOUTS = 8  # of one task: the quickstart's
SHOWN = 20  # problems of one run
ENDING = 60.0  # seconds within which everything of a run must be gone


@dataclass(frozen=True)
class Found:
    """What came of a run: what was killed, its held-out reward, and what did not hold."""

    killed: Counter[str]
    reward: float | None
    problems: list[str]


def go_through(
    run: KilledRun, rng: random.Random, left: Callable[[], float], killed: Counter[str]
) -> Seen:
    """Bring a run to completion, killing parts of it while there is time.

    Args:
        run: It is started here.
        rng: Draws what is killed, and when.
        left: Returns the seconds that are left for it.
        killed: Counts what was killed.

    Returns:
        The finished rollouts that were on disk at each kill.

    Raises:
        AssertionError: It ended badly, or left processes.
    """
    seen, expected, before = Seen(), set[int](), 0

    def soon() -> float:
        return float(time.monotonic() + rng.uniform(0.5, 1.5) * run.args.every)

    run.start()
    following = soon()
    while True:
        while run.code is None and (left() <= 0 or time.monotonic() < following):
            time.sleep(0.1)
        if run.code is not None:
            try:
                wait_until(lambda: not run.left(), "no process is left", ENDING)
            except AssertionError as error:
                raise AssertionError(f"{error}: {run.left()}") from error
            if run.code == 0:
                if (hosts := run.hosts) is not None:
                    wait_until(lambda: not hosts.containers(), "no container is left", ENDING)
                return seen
            assert run.code in expected, f"the run ended with {run.code}; see {run.log}"
            expected, before = set(), len(seen.lines)
            run.start()
            continue
        following = soon()
        seen.look(run.folder.path)
        if len(seen.lines) == before:
            continue  # it is still starting, or would never get anywhere
        if (drawn := draw(rng, run.parts(), SHARES)) is not None:
            part, name, kill = drawn
            expected |= run.codes(part)
            kill()
            killed[part] += 1
            print(f"  killed {part} {name}, after {len(seen.lines)} rollouts", flush=True)


def problems(run: KilledRun, seen: Seen) -> list[str]:
    """Return what does not hold of a run that has ended."""
    folder, most = run.folder, run.args.steps
    traces = steps(folder.path)
    every = [trace for found in traces.values() for trace in found]
    answers = None if run.args.one_machine else Answers(run.journals)
    return [
        *seen.lost(folder.path),
        *check_counts(traces, rollouts=ROLLOUTS, most=most),
        *check_metrics(folder, traces, most),
        *check_errors(every),
        *([] if answers is None else answers.check(every)),
    ]


def check(
    args: argparse.Namespace,
    number: int,
    left: Callable[[], float],
    machines: Machines | None,
    hosts: SandboxHosts | None,
) -> Found:
    """Bring one run to completion, and look at what it has left."""
    if args.keep is not None:
        args.keep.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="cluster-", dir=args.keep))
    mark = folder.name if machines is None else machines.mark
    seed = args.seed + number
    run = KilledRun(folder, args, seed=seed, machines=machines, hosts=hosts, mark=mark)
    killed = Counter[str]()
    try:
        seen = go_through(run, random.Random(f"{args.seed} {number}"), left, killed)
        wrong = problems(run, seen)
    except AssertionError as error:
        wrong = [str(error)]
    finally:
        run.stop()
    reward = run.reward()
    held_out = "none" if reward is None else f"{reward:.3f}"
    said = f"{len(wrong)} problems; see {folder}" if wrong else "nothing is wrong"
    print(f"run {number}: {run.starts} starts, held-out reward {held_out}, {said}", flush=True)
    for problem in wrong[:SHOWN]:
        print(f"    {problem}", flush=True)
    if not wrong and args.keep is None:
        shutil.rmtree(folder)
    return Found(killed, reward, wrong)


def parse() -> argparse.Namespace:
    """Read the command line."""
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
    add("--ray", type=int, default=0, metavar="N", help="on a Ray cluster of so many machines")
    add("--hosts", type=int, default=0, metavar="N", help="work in sandboxes on so many engines")
    add("--keep", type=Path, help="folder in which everything is kept")
    return parser.parse_args()


def main() -> int:
    """Run the checks and return the exit code."""
    args = parse()
    started, found = time.monotonic(), list[Found]()

    def left() -> float:
        return float(args.seconds - (time.monotonic() - started))

    with ExitStack() as stack:
        machines = None
        if args.ray:
            from ray_machines import Machines

            machines = stack.enter_context(Machines(args.ray))
        hosts = None
        if args.hosts:
            from sandbox_hosts import SandboxHosts

            hosts = stack.enter_context(SandboxHosts(args.hosts))
        while len(found) < args.runs or left() > 0:
            found.append(check(args, len(found), left, machines, hosts))
    killed = sum((each.killed for each in found), Counter[str]())
    bad = sum(bool(each.problems) for each in found)
    summary = {"check": "cluster", "runs": len(found), "failed": bad, "killed": dict(killed)}
    summary |= {"held_out": [each.reward for each in found]}
    print(json.dumps(summary | {"seconds": round(time.monotonic() - started)}))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
