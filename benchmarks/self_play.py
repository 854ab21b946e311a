"""Does a model learn tic-tac-toe by playing against itself?

    python benchmarks/self_play.py [--warm-start] [--games N] [--seed N]

The tiny model first learns the rules from random games (`configs/sft/tic-tac-toe.toml`): a move is
the number of an empty cell. Then it plays both sides of every game (`configs/self-play.toml`), and
what it is measured by never plays with it in training: random moves, and perfect play. Runs that
are there are resumed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import vf

ROOT = Path(__file__).parents[1]
START = ROOT / "runs" / "tic-tac-toe-start"
RUN = ROOT / "runs" / "self-play"
GAMES = START.with_name("random-games.jsonl")
BAR = 0.05  # of the games against random moves that may be lost


def main() -> None:
    """Train and measure, and print a table and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--warm-start", action="store_true", help="learn the rules only")
    parser.add_argument("--games", type=int, default=1000, help="against each (default: 1000)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if not (START / "model").is_dir():
        GAMES.parent.mkdir(exist_ok=True)
        GAMES.unlink(missing_ok=True)
        asyncio.run(random_games(12_000))
        run("sft", "configs/sft/tic-tac-toe.toml")
    if args.warm_start:
        return
    if RUN.is_dir():
        run("--resume", str(RUN))
    else:
        run("configs/self-play.toml", "--set", f"trainer.args.seed={args.seed}")
    print("| games | random moves: won | drawn | lost | forfeited |")
    print("|---|---|---|---|---|")
    for line in (RUN / "metrics.jsonl").open():
        metrics = json.loads(line)
        if "eval/reward/mean" in metrics:
            lost = metrics["eval/metric/lost"]
            won = metrics["eval/success_rate"]
            forfeited = metrics["eval/metric/forfeited"]
            row = f"{won:.3f} | {1 - won - lost:.3f} | {lost:.3f} | {forfeited:.3f}"
            print(f"| {256 * metrics['step']:,} | {row} |")
    found = {name: measure(name, args) for name in ("random", "perfect")}
    lost = found["random"]["lost"]
    print(json.dumps({"benchmark": "self_play", "lost": lost, "target": BAR, **found}))


async def random_games(count: int) -> None:
    """Write games in which both sides move at random."""
    environment = vf.make("tic-tac-toe", openings=6, num_train=count)
    rng = random.Random(0)

    def move(messages: list[vf.Message]) -> str:
        return rng.choice([cell for cell in messages[-1].content.split() if cell.isdigit()])

    with vf.TraceStore(GAMES) as store:
        tasks = list(islice(environment.tasks("train"), count))
        await vf.evaluate(environment, vf.ScriptedModel(move), tasks=tasks, on_trace=store.append)


def measure(opponent: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return the shares of games that the best checkpoint wins, draws and loses."""
    folder = RUN / f"against-{opponent}"
    model = str(RUN / "checkpoints" / "best" / "model")
    settings = json.dumps({"eval_opponent": opponent, "num_eval": args.games})
    options = ["-n", str(args.games), "-c", "128", "--args", settings]
    run("eval", "tic-tac-toe", "-m", model, "-o", str(folder), *options)
    rewards = [trace.reward for trace in vf.TraceStore(next(folder.rglob("*.jsonl")))]
    shares = {"won": 1.0, "drawn": 0.5, "lost": 0.0}
    return {name: rewards.count(value) / len(rewards) for name, value in shares.items()}


def run(*words: str) -> None:
    """Run a command of the library's, with its output on stderr."""
    command = [sys.executable, "-m", "vf.trainer.commands.main", *words]
    subprocess.run(command, cwd=ROOT, check=True, stdout=sys.stderr)


if __name__ == "__main__":
    main()
