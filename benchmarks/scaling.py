"""How the cost of a trainer step grows: `python benchmarks/scaling.py --plot FILE.png`.

One optimizer step of vf-rl on made-up rollouts, with the random Llama of `trainer_step.py` (20 M
parameters) in float32, all weights trained:

- *turns*: 1 to 16 turns at fixed tokens per turn. `growing` is one sequence per rollout, which
  grows; `per_turn` is one sequence for each turn, its whole context before it, as trainers have
  it that take each request for a sample: packed, without shared prefixes. Both train the same
  tokens with the same contexts, so their gradient norms must agree, or the benchmark fails.
- *group size*: 1 to 16 rollouts of one prompt, with and without `share_prefixes`.
- *processes*: 1 and 2 (gloo, on the CPU), one thread each.

The last line is JSON: `ratio` is the time of `per_turn` over that of `growing` at the most turns.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from harness import parse, print_result, say
from peers import versions_of
from scaling_worker import Work, make_config, measure, samples
from trainer_step_workers import make_model

if TYPE_CHECKING:
    from vf.trainer.learning.batches.batch import Sample
    from vf.trainer.learning.policy import Policy

TARGET = 4.0  # by tokens alone it is 8.5: see results/scaling.md
TURNS, GROUP_SIZES, PROCESSES = [1, 2, 4, 8, 12, 16], [1, 2, 4, 8, 16], (1, 2)
BUDGET = 4352  # tokens in one pass
WORKER = Path(__file__).with_name("scaling_worker.py")
Found = dict[str, dict[int, dict[str, float]]]


def prepare(
    folder: str, work: Work, *, per_turn: bool = False, share: bool = True
) -> tuple[Policy, list[Sample]]:
    """Return a policy and what it is to train on."""
    from vf.trainer.learning.policy import Policy

    settings = {"micro_batch_tokens": max(BUDGET, work.longest), "share_prefixes": share}
    config = make_config(folder, work.longest, settings)
    return Policy(config.model, config.args), samples(work, per_turn=per_turn)


def show(what: str, number: int, how: str, found: dict[str, float]) -> None:
    """Print a measurement."""
    print(
        f"{what:>10} {number:3d}  {how:>10}  {found['seconds']:8.3f} s  "
        f"{found['computed_tokens']:8,.0f} tokens computed  "
        f"gradient norm {found['grad_norm']:.6g}",
        flush=True,
    )


def same(what: str, first: dict[str, float], second: dict[str, float]) -> None:
    """End the benchmark where two ways have not taken the same step."""
    low, high = sorted((first["grad_norm"], second["grad_norm"]))
    if high > (1 + 1e-4) * low:
        sys.exit(f"{what}: gradient norms differ: {low} and {high}")


def by_turns(folder: str, args: argparse.Namespace) -> Found:
    """Measure both ways to train a rollout of many turns."""
    work = Work(groups=1, group_size=1, prompt=64, turns=1, observation=64, completion=64)
    found: Found = {"growing": {}, "per_turn": {}}
    for turns in args.turns:
        shape = replace(work, turns=turns)
        pairs = [prepare(folder, shape), prepare(folder, shape, per_turn=True, share=False)]
        for how, got in zip(found, measure(pairs, args.rounds), strict=True):
            found[how][turns] = got
            show("turns", turns, how, got)
        same(f"{turns} turns", found["growing"][turns], found["per_turn"][turns])
    return found


def by_group_size(folder: str, args: argparse.Namespace) -> Found:
    """Measure with and without shared prefixes."""
    work = Work(groups=1, group_size=1, prompt=500, turns=1, observation=0, completion=100)
    found: Found = {"shared": {}, "plain": {}}
    for size in args.group_sizes:
        shape = replace(work, group_size=size)
        pairs = [prepare(folder, shape), prepare(folder, shape, share=False)]
        for how, got in zip(found, measure(pairs, args.rounds), strict=True):
            found[how][size] = got
            show("group size", size, how, got)
        same(f"groups of {size}", found["shared"][size], found["plain"][size])
    return found


def by_processes(folder: str, args: argparse.Namespace) -> dict[int, dict[str, float]]:
    """Measure in one process and in two, each with one thread."""
    work = Work(groups=4, group_size=4, prompt=300, turns=1, observation=0, completion=100)
    asked = {"folder": folder, "work": asdict(work), "rounds": args.rounds}
    asked["settings"] = {"micro_batch_tokens": BUDGET}
    found: dict[int, dict[str, float]] = {}
    path = Path(folder) / "found.json"
    for count in PROCESSES:
        say(f"{count} processes")
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
        subprocess.run(
            [sys.executable, *launcher, str(WORKER), json.dumps(asked), str(path)],
            check=True,
            # One process is not to have the cores that two have to share.
            env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        )
        found[count] = json.loads(path.read_text())
        show("processes", count, "gloo", found[count])
    same("processes", found[1], found[2])
    return found


def plot(turns: Found, sizes: Found, processes: dict[int, dict[str, float]], path: Path) -> None:
    """Draw seconds over turns, over the group's size, and over processes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    looks = {
        "growing": ("#1f6feb", "one growing sequence (ours)"),
        "per_turn": ("#d1690e", "one sequence per turn"),
        "shared": ("#1f6feb", "shared prefixes (ours)"),
        "plain": ("#d1690e", "packed, not shared"),
    }
    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(12, 4), width_ratios=(3, 3, 1.5))
    for axes, curves, label in ((left, turns, "turns"), (middle, sizes, "rollouts in the group")):
        for how, points in curves.items():
            colour, name = looks[how]
            seconds = [found["seconds"] for found in points.values()]
            axes.plot([*points], seconds, "o-", color=colour, label=name)
        axes.set_xticks([*next(iter(curves.values()))])
        axes.set_xlabel(label)
        axes.set_ylabel("seconds per optimizer step")
        axes.set_ylim(0)
        axes.grid(alpha=0.25)
        axes.legend(loc="upper left", frameon=False)
    heights = [found["seconds"] for found in processes.values()]
    right.bar([str(count) for count in processes], heights, color="#1f6feb", width=0.6)
    right.set_xlabel("processes, one thread each")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="steps each, after one to warm up")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the curves")
    parser.add_argument("--turns", type=int, nargs="+", default=TURNS)
    parser.add_argument("--group-sizes", type=int, nargs="+", default=GROUP_SIZES)
    args = parse(parser, rounds=1, turns=[1, 2], group_sizes=[1, 2])
    with tempfile.TemporaryDirectory() as folder:
        make_model(folder, narrow=args.smoke)
        turns, sizes = by_turns(folder, args), by_group_size(folder, args)
        processes = by_processes(folder, args)
    if args.plot is not None:
        plot(turns, sizes, processes, args.plot)

    def over(found: Found, slow: str, fast: str) -> dict[int, float]:
        pairs = zip(found[slow].items(), found[fast].values(), strict=True)
        return {n: round(mine["seconds"] / ours["seconds"], 2) for (n, mine), ours in pairs}

    ratios = over(turns, "per_turn", "growing")
    print_result(
        args,
        "scaling",
        ratio=ratios[args.turns[-1]],
        target=TARGET,
        at_turns=args.turns[-1],
        ratio_by_turns=ratios,
        plain_over_shared_by_group_size=over(sizes, "plain", "shared"),
        one_process_over_two=round(processes[1]["seconds"] / processes[2]["seconds"], 2),
        turns=turns,
        group_sizes=sizes,
        processes=processes,
        rounds=args.rounds,
        cores=os.cpu_count(),
        threads=torch.get_num_threads(),
        versions={"python": platform.python_version()}
        | versions_of("torch", "transformers", "accelerate"),
    )


if __name__ == "__main__":
    main()
