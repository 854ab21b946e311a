"""Does a model learn Kuhn poker by playing against itself?

    python benchmarks/self_play.py [--warm-start] [--seed N]

The tiny model first learns from games of weak players (`configs/sft/kuhn-poker.toml`) what a reply
is, and to look at its card and at what it heard. Then it plays both roles of every game
(`configs/self-play.toml`); it never meets another player in training. Runs that are there are
resumed.

What is measured is exact: the probabilities of a bet in the 12 situations of the game, read from
the model, give its *exploitability*, the chips per game that the best opponent wins from it on
average over both roles. In an equilibrium nobody wins anything, and against one no strategy does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
from itertools import permutations, product
from pathlib import Path
from typing import Any

import torch
from harness import parse, print_result, say
from transformers import AutoModelForCausalLM, AutoTokenizer

import vf
from vf.environments.bundled.kuhn_poker import EQUILIBRIUM, KuhnPoker
from vf.trainer.settings.load_config import load_config

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "configs" / "self-play.toml"
RUNS = ROOT / "runs"
GAMES = "weak-games.jsonl"
SMOKE = {"max_steps": 1, "batch_size": 16, "save_steps": 1, "eval_steps": 1}
BAR = 0.05  # chips per game
# How likely a weak player bets: before a bet was made, and after one.
WEAK = {"J": (0.25, 0.15), "Q": (0.5, 0.4), "K": (0.75, 0.65)}

ROLES = (*EQUILIBRIUM,)
CARDS = (*EQUILIBRIUM["first"],)  # the lowest first

# The probability of a bet, by role, card, and whether the other player has bet.
Strategy = dict[tuple[str, str, bool], float]
IDEAL: Strategy = {
    (role, card, bool(bet)): p
    for role, cards in EQUILIBRIUM.items()
    for card, both in cards.items()
    for bet, p in enumerate(both)
}


def main() -> None:
    """Train and measure, and print a table and one line of JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--warm-start", action="store_true", help="learn from weak players only")
    parser.add_argument("--seed", type=int, default=0)
    args = parse(parser)
    if args.smoke:
        with tempfile.TemporaryDirectory(prefix="self-play-") as scratch:
            play(Path(scratch), args, SMOKE)
    else:
        RUNS.mkdir(exist_ok=True)
        play(RUNS, args, {})


def play(runs: Path, args: argparse.Namespace, settings: dict[str, int]) -> None:
    """Train and measure.

    Args:
        runs: The folder of the runs.
        args: The options.
        settings: Of both runs, other than in their TOMLs.
    """
    start, main_run, games = runs / "kuhn-poker-start", runs / "self-play", runs / GAMES
    where: dict[str, Any] = {"output_dir": str(runs), **settings}
    if not (start / "model").is_dir():
        say("games of weak players")
        games.unlink(missing_ok=True)
        asyncio.run(weak_games(games, 200 if args.smoke else 12_000))
        say("learning from them")
        run("sft", "configs/sft/kuhn-poker.toml", **where, traces=[str(games)])
    if args.warm_start:
        return
    say("playing against itself")
    if main_run.is_dir():
        run("--resume", str(main_run))
    else:
        model = str(start / "model")
        models = {"model": model, "reference_model": model}
        tasks = {"eval_examples": 24} if args.smoke else {}
        run(str(CONFIG), **where, **models, **tasks, seed=args.seed)
    say("measuring the checkpoints")
    print("| games | exploitability | against an equilibrium | illegal replies |")
    print("|---|---|---|---|")
    found = {0: measure(start / "model")}
    for folder in sorted((main_run / "checkpoints").glob("step-*"), key=step_of):
        found[step_of(folder)] = measure(folder / "model")
    batch_size = load_config(CONFIG)[0].args.batch_size  # games in a step
    for step, got in found.items():
        print(
            f"| {batch_size * step:,} | {got['exploitability']:.3f} "
            f"| {got['equilibrium']:+.3f} | {got['illegal']:.4f} |"
        )
    last = found[max(found)]
    ratio = BAR / last["exploitability"]
    print_result(args, "self_play", ratio=ratio, target=1.0, bar=BAR, before=found[0], **last)


def step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


async def weak_games(path: Path, count: int) -> None:
    """Write games of two weak players."""
    rng = random.Random(0)

    def move(messages: list[vf.Message]) -> str:
        said = messages[-1].content
        likely = WEAK[said[-2]]["bets" in said]
        return "bet" if rng.random() < likely else "pass"

    environment = KuhnPoker(num_train=count)
    tasks = [*environment.tasks("train")]
    with vf.TraceStore(path) as store:
        await vf.evaluate(environment, vf.ScriptedModel(move), tasks=tasks, on_trace=store.append)


def measure(folder: Path) -> dict[str, Any]:
    """Return what a checkpoint is worth, in chips per game on average over both roles.

    Its illegal replies, whose largest probability is given, are left out: it is asked again.
    """
    bets, illegal = strategy(folder)
    first, second = ({key: p for key, p in IDEAL.items() if key[0] == role} for role in ROLES)
    return {
        "exploitability": exploitability(bets),
        "equilibrium": (value(bets | second) - value(bets | first)) / 2,
        "illegal": illegal,
        "bets": {
            " ".join([role, card, *(["bet"] if bet else [])]): round(p, 3)
            for (role, card, bet), p in bets.items()
        },
    }


def exploitability(bets: Strategy) -> float:
    """Return what the best opponent wins per game, on average over both roles."""
    as_first = max(value(bets | answer) for answer in answers("first"))
    as_second = max(-value(bets | answer) for answer in answers("second"))
    return (as_first + as_second) / 2


def answers(role: str) -> list[Strategy]:
    """Return all strategies of a role in which nothing is left to chance."""
    keys = [(role, card, bet) for card in CARDS for bet in (False, True)]
    return [dict(zip(keys, chosen, strict=True)) for chosen in product((0.0, 1.0), repeat=6)]


def value(bets: Strategy) -> float:
    """Return what the first player wins per game, summed over all deals."""
    total = 0.0
    for first, second in permutations(CARDS, 2):
        higher = 1 if CARDS.index(first) > CARDS.index(second) else -1
        opens, after_pass = bets["first", first, False], bets["second", second, False]
        called, calls = bets["second", second, True], bets["first", first, True]
        total += opens * ((1 - called) + called * 2 * higher)
        total += (1 - opens) * (1 - after_pass) * higher
        total += (1 - opens) * after_pass * (calls * 2 * higher - (1 - calls))
    return total / 6


def strategy(folder: Path) -> tuple[Strategy, float]:
    """Return a model's probabilities of a bet, and the largest of an illegal reply."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    bets, illegal = Strategy(), 0.0
    for role, card, bet in product(ROLES, CARDS, (False, True)):
        prompt = tokenizer.apply_chat_template(
            asked(role, card, bet), add_generation_prompt=True, return_dict=True
        )["input_ids"]
        chance = {}
        for move in ("bet", "pass"):
            ids = [*tokenizer.encode(move, add_special_tokens=False), tokenizer.eos_token_id]
            with torch.no_grad():
                logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
            chosen = logits.double().log_softmax(-1).gather(-1, torch.tensor(ids)[:, None])
            chance[move] = float(chosen.sum().exp())
        bets[role, card, bet] = chance["bet"] / sum(chance.values())
        illegal = max(illegal, 1 - sum(chance.values()))
    return bets, illegal


def asked(role: str, card: str, bet: bool) -> list[dict[str, str]]:
    """Return the messages of a role in a situation, as the environment sends them."""
    seen: list[list[vf.Message]] = []
    moves = {"first": ["pass", "bet"] if bet else [], "second": ["bet" if bet else "pass"]}[role]

    def move(messages: list[vf.Message]) -> str:
        seen.append([*messages])
        return moves[len(seen) - 1] if len(seen) <= len(moves) else "pass"

    other = next(each for each in CARDS if each != card)
    cards = [card, other] if role == "first" else [other, card]
    info = {"split": "train", "opponent": "itself", "role": role, "cards": cards}
    task = vf.Task("asked", "", answer="", info=info)
    asyncio.run(vf.rollout(KuhnPoker(), task, vf.ScriptedModel(move)))
    return [{"role": m.role, "content": m.content} for m in seen[len(moves)]]


def run(*words: str, **settings: Any) -> None:
    """Run a command of the library's with these settings, and its output on stderr."""
    command = [sys.executable, "-m", "vf.trainer.commands.main", *words]
    for name, value in settings.items():
        command += ["--set", f"{name}={json.dumps(value)}"]
    subprocess.run(command, cwd=ROOT, check=True, stdout=sys.stderr)


if __name__ == "__main__":
    main()
