"""Does a model learn in a mixture what it learns in each environment alone?

    python benchmarks/mixture.py [--steps N] [--tasks N] [--seed N]

Trains the tiny model in three environments at once, and in each of them alone with equally many of
its rollouts and equally many optimizer steps: a step of the mixture has those of all three. Each is
measured on the same held-out tasks, with the same seeds. The environments have one tool, one rubric
and one system prompt, so what is learned in one contradicts no other; they differ in how large the
operands are, and how many operations a task has.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import parse, print_result, say

import vf
from vf.trainer.settings.load_config import parse_config
from vf.trainer.settings.write_config import to_toml

BAR = 0.03  # below what is reached alone
ENVIRONMENTS = {
    "short": {"max_operations": 1, "max_operand": 50, "seed": 1},
    "usual": {"max_operations": 2, "max_operand": 20},
    "long": {"max_operations": 3, "max_operand": 20, "seed": 2},
}


def main() -> None:
    """Run all four, and print a table and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps (default: 20)")
    parser.add_argument("--tasks", type=int, default=200, help="held out, of each (default: 200)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=64, help="rollouts of each in a step (64)")
    args = parse(parser, steps=1, tasks=4, batch=8)
    with tempfile.TemporaryDirectory(prefix="mixture-") as name:
        folder = Path(name)
        mixed = train([*ENVIRONMENTS], folder, args)
        alone = {name: train([name], folder, args)[name] for name in ENVIRONMENTS}
    print("| environment | before | alone | in the mixture | difference |")
    print("|---|---|---|---|---|")
    for name, (before, after) in mixed.items():
        single = alone[name][1]
        print(f"| {name} | {before:.3f} | {single:.3f} | {after:.3f} | {after - single:+.3f} |")
    ratio = min(after / (alone[name][1] - BAR) for name, (_, after) in mixed.items())
    print_result(
        args,
        "mixture",
        ratio=round(ratio, 3),
        target=1.0,
        rollouts_of_each=args.batch * args.steps,
        seed=args.seed,
    )


def train(
    names: list[str], folder: Path, settings: argparse.Namespace
) -> dict[str, tuple[float, float]]:
    """Return each environment's held-out reward before and after training in all of them."""
    run, steps = "-".join(names), settings.steps
    envs = [{"id": "calculator", "name": name, "args": ENVIRONMENTS[name]} for name in names]
    raw: dict[str, Any] = {
        "model": "tiny",
        "env": envs,
        "inference": {"args": {"max_requests": 64}},
        "trainer": {
            "args": {
                "run_name": run,
                "output_dir": str(folder),
                "seed": settings.seed,
                "max_steps": steps,
                "batch_size": settings.batch * len(names),
                "rollouts_per_example": 8,
                "max_tokens": 64,
                "temperature": 0.9,
                "max_prompt_len": 256,
                "max_seq_len": 640,
                "learning_rate": 1e-3,
                "lr_scheduler_type": "linear",
                "eval_steps": steps,
                "eval_examples": settings.tasks,
                "save_steps": steps,
            }
        },
    }
    path = folder / f"{run}.toml"
    path.write_text(to_toml(parse_config(raw)[0]))
    say(f"{run}: training for {steps} steps")
    started = time.perf_counter()
    vf.train(path, quiet=True)
    lines = [json.loads(line) for line in (folder / run / "metrics.jsonl").open()]
    keys = {
        name: f"env/{name}/eval/reward/mean" if len(names) > 1 else "eval/reward/mean"
        for name in names
    }
    found = {name: (lines[0][key], lines[-1][key]) for name, key in keys.items()}
    print(f"{run}: {found}, {time.perf_counter() - started:.0f} s", flush=True)
    return found


if __name__ == "__main__":
    main()
