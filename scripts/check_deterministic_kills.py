"""Kill deterministic runs at random moments, and see that no bit is another.

    python scripts/check_deterministic_kills.py --runs 20 --kills 6 --seed 0

The tiny model trains with ``trainer.args.deterministic = true`` and 64 rollouts at once: once left
alone, then so many times with kills. SIGKILL goes to the run at a moment that a seeded draw
chooses, from its first sign of life on, and it is resumed; the last child may end. Then compares
with the run that was left alone, bit by bit: every metric but the clock's, every token with its
log-probability and every reward of every step, and all that is trained with its optimizer state.

Prints a line for each run, and ends with 1 if anything differs, or ``kl_sample_train`` is not 0.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.trainer.saving.comparing import differences
from tests.trainer.saving.kill_run import DETERMINISTIC, STEPS, children, run_through
from vf.runtime.command import DONE, FAILED
from vf.trainer.run.run_folder import RunFolder

KL = ("kl_sample_train_v1", "kl_sample_train_v2", "kl_sample_train_v3", "logprob_gap")


def said(found: list[str]) -> str:
    """Return a list as text."""
    return ", ".join(found) or "nothing"


def main() -> int:
    """Check, and return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20, help="runs that are killed")
    parser.add_argument("--kills", type=int, default=6, help="most kills of one run")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--patience", type=float, default=600.0, help="seconds that a run has")
    args = parser.parse_args()
    server, kills, bad = children(), 0, 0
    with tempfile.TemporaryDirectory() as root:
        alone = RunFolder(Path(root) / "alone")
        begun = time.monotonic()
        run_through(server, alone.path, DETERMINISTIC, 0, 0, patience=args.patience)
        seconds = time.monotonic() - begun
        lines = alone.read_metrics()
        loud = [f"step {line['step']}: {name}" for line in lines for name in KL if line.get(name)]
        print(f"left alone: {STEPS} steps in {seconds:.0f} s; not 0: {said(loud)}", flush=True)
        for number in range(args.runs):
            folder = RunFolder(Path(root) / f"killed-{number}")
            done = run_through(
                server,
                folder.path,
                DETERMINISTIC,
                args.kills,
                args.seed + number,
                within=2 * seconds / (args.kills + 1),
                patience=args.patience,
            )
            found = differences(alone, folder)
            kills, bad = kills + done, bad + bool(found)
            print(f"run {number}: {done} kills; differs: {said(found)}", flush=True)
    print(f"{args.runs} runs, {kills} kills, {bad} runs that differ")
    return FAILED if bad or loud else DONE


if __name__ == "__main__":
    sys.exit(main())
