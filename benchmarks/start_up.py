"""What a command costs before its first rollout: `python benchmarks/start_up.py`.

Each in a fresh process, alternating, with the processor time (user and system, of the process and
of all that it started) from the interpreter's start to the model's first reply:

- plain: transformers and nothing else. It loads the tiny model that ships with vf-rl, and samples
  one reply to one prompt: what anybody would write.
- eval: `vf-rl eval calculator -m tiny -n 1`.
- train: `vf-rl configs/quickstart.toml`, whose first replies are those of the evaluation before the
  first step. It checks the config, the memory and the first prompts of the tasks, and adds LoRA.

With `--against FOLDER`, another clone of this repository, the commands also run from there, and
`--rounds` pairs of runs say what a change between the two is worth. Processor time varies less than
wall time where other programs run, but it varies, too: compare medians of one call only.

The last line is JSON: `ratio` is plain over eval, from medians of the rounds; `against` has ours
over the other clone's, the median of the pairs.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from harness import parse, print_result, say
from peers import versions_of

ROOT = Path(__file__).parents[1]
TARGET = 0.8  # of transformers' own start
SPENT = """
import os, resource, sys
def report():
    spent = [resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    seconds = sum(each.ru_utime + each.ru_stime for each in spent)
    os.write(int(sys.argv[1]), str(seconds).encode())
    os._exit(0)
"""
COMMAND = """
from vf.environments.bundled.calculator import Calculator
from vf.trainer.commands.main import main
Calculator.step = lambda self, reply: report()  # is called with a rollout's first reply
main(sys.argv[2:])
"""
PLAIN = """
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[2])
model = AutoModelForCausalLM.from_pretrained(sys.argv[2], dtype=torch.float32)
messages = [{"role": "user", "content": "What is 3 + 4?"}]
prompt = tokenizer.apply_chat_template(
    messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
)
model.generate(**prompt, max_new_tokens=32)
report()
"""
COMMANDS = {
    "eval": ["eval", "calculator", "-m", "tiny", "-n", "1"],
    "train": [str(ROOT / "configs" / "quickstart.toml")],
}


def spent(code: str, arguments: list[str], clone: Path = ROOT) -> float:
    """Return the processor time that a program takes until it reports, in seconds."""
    mine, theirs = os.pipe()
    # The clone's own `vf`, whichever is installed.
    environ = os.environ | {"PYTHONPATH": str(clone), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", SPENT + code, str(theirs), *arguments],
            cwd=folder,
            env=environ,
            pass_fds=[theirs],
            capture_output=True,
            text=True,
        )
    os.close(theirs)
    with os.fdopen(mine) as pipe:
        reported = pipe.read()
    if not reported:
        raise SystemExit(f"a command ended before its first reply:\n{done.stderr}")
    return float(reported)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="another clone")
    args = parse(parser, rounds=1)
    tiny = str(ROOT / "inference" / "tiny")
    runs = {"plain": (PLAIN, [tiny], ROOT)}
    runs |= {name: (COMMAND, argv, ROOT) for name, argv in COMMANDS.items()}
    if args.against is not None:
        there = args.against.absolute()
        runs |= {f"{name} there": (COMMAND, argv, there) for name, argv in COMMANDS.items()}
    for each in runs.values():
        spent(*each)  # compiles what has changed
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(args.rounds):
        for name in runs if number % 2 else reversed(runs):
            seconds[name].append(spent(*runs[name]))
        latest = ", ".join(f"{name} {seconds[name][-1]:.2f}" for name in runs)
        say(f"round {number + 1} of {args.rounds}: {latest} s")
    medians = {name: round(median(each), 2) for name, each in seconds.items()}
    for name, value in medians.items():
        print(f"{name:>12}  {value:5.2f} s of processor time to the first reply")
    against = {
        name: round(median(ours / theirs for ours, theirs in pairs), 3)
        for name in COMMANDS
        if (pairs := [*zip(seconds[name], seconds.get(f"{name} there", []), strict=False)])
    }
    print_result(
        args,
        "start_up",
        ratio=round(medians["plain"] / medians["eval"], 2),
        target=TARGET,
        seconds=medians,
        against=against,
        versions=versions_of("torch", "transformers", "peft"),
        python=platform.python_version(),
    )


if __name__ == "__main__":
    main()
