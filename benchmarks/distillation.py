"""How many rollouts a teacher saves: `python benchmarks/distillation.py`.

For each seed the quickstart is trained by its rewards, and its merged model becomes the teacher of
two fresh students, which learn on the same tasks from the teacher alone: one by the reverse KL at
the sampled tokens, one by the forward KL over the teacher's likeliest tokens. All are evaluated on
the same 200 held-out tasks after every 64 rollouts. Counted are the rollouts after which each first
comes within 0.01 of the teacher's held-out reward; evaluations are not counted.

The last line is JSON: `ratio` is the rollouts of reinforcement learning over those of distillation
by the forward KL, the smallest of the seeds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness import parse, print_result, say

from vf.trainer.run.run_folder import RunFolder

QUICKSTART = Path(__file__).parents[1] / "configs" / "quickstart.toml"
TARGET = 5.0
NEAR = 0.01  # of reward: two of the 200 tasks
STUDENT = {
    "batch_size": 32,
    "rollouts_per_example": 2,
    "eval_steps": 2,
    "save_steps": 12,
    # Each token's signal is exact, so each rollout bears several optimizer steps.
    "loss_fn": "ppo",
    "num_iterations": 4,
    "learning_rate": 2e-3,
    "lora_rank": 64,
    "lora_alpha": 64,
}
# Each ends, its learning rate with it, some time after it has come to where its teacher is.
SMOKE = {"max_steps": 1, "eval_steps": 1, "save_steps": 1, "eval_examples": 4, "batch_size": 8}
STUDENTS: dict[str, dict[str, Any]] = {
    "reverse_kl": {"max_steps": 12},
    "forward_kl": {"max_steps": 8},
}


def train(folder: Path, name: str, settings: Mapping[str, Any]) -> RunFolder:
    """Run `vf-rl` on the quickstart's TOML with other settings, and return the run's folder."""
    words = {"output_dir": str(folder), "run_name": name, **settings}
    command = [sys.executable, "-m", "vf.trainer.commands.main", str(QUICKSTART)]
    for key, value in words.items():
        command += ["--set", f"{key}={json.dumps(value)}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return RunFolder(folder / name)


def export(run: RunFolder) -> Path:
    """Write the last checkpoint of a run as a whole model."""
    out = run.path / "merged"
    command = [sys.executable, "-m", "vf.trainer.commands.main", "export", str(run.path), "-o"]
    subprocess.run([*command, str(out)], check=True, stdout=subprocess.DEVNULL)
    return out


def curve(run: RunFolder, batch_size: int) -> dict[int, float]:
    """Return the held-out reward by the rollouts that were trained on before."""
    return {
        int(line["step"]) * batch_size: line["eval/reward/mean"]
        for line in run.read_metrics()
        if "eval/reward/mean" in line
    }


def first(rewards: Mapping[int, float], bar: float) -> int | None:
    """Return the rollouts after which the reward first was at the bar."""
    return next((count for count, reward in rewards.items() if reward >= bar), None)


def shown(rewards: Mapping[int, float]) -> str:
    """Return a curve in one line."""
    return ", ".join(f"{count}: {reward:.3f}" for count, reward in rewards.items())


def main() -> None:
    """Train teachers and students, and compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    args = parse(parser, seeds=1)
    smallest = SMOKE if args.smoke else {}
    ratios: dict[str, list[float]] = {name: [] for name in STUDENTS}
    with tempfile.TemporaryDirectory(prefix="distillation-") as name:
        for seed in range(args.seeds):
            folder = Path(name)
            say(f"seed {seed}: training a teacher by rewards")
            alone = train(folder, f"teacher-{seed}", {"seed": seed, "eval_steps": 1, **smallest})
            by_reward = curve(alone, 64)
            bar = [*by_reward.values()][-1] - NEAR
            slow = first(by_reward, bar)
            print(f"seed {seed}: the teacher's held-out reward is {bar + NEAR:.3f}")
            print(f"  by rewards: {shown(by_reward)}")
            print(f"    within {NEAR} after {slow} rollouts", flush=True)
            teacher = {"seed": seed, "teacher_model": str(export(alone)), **STUDENT}
            for loss, settings in STUDENTS.items():
                say(f"seed {seed}: training a student by {loss}")
                taught = {**teacher, "teacher_loss": loss, **settings, **smallest}
                by_teacher = curve(train(folder, f"{loss}-{seed}", taught), 32)
                fast = first(by_teacher, bar)
                ratios[loss].append(slow / fast if slow and fast else 0.0)
                print(f"  by {loss}: {shown(by_teacher)}")
                print(f"    within {NEAR} after {fast} rollouts", flush=True)
    ratio = min(ratios["forward_kl"])
    print_result(args, "distillation", ratio=ratio, target=TARGET, seeds=ratios)


if __name__ == "__main__":
    main()
