"""Whether an agent with its own loop learns as well: `python benchmarks/agent_learning.py`.

The quickstart is trained twice: with the calculator as an environment (`configs/quickstart.toml`)
and with openai-agents, unmodified, at its rollouts' endpoints (`configs/agent-calculator.toml`).
Model, tasks, prompts, tool, rubric and settings are the same. Each has a process of its own; they
train a slice of the steps in turn, so that whatever else the machine does falls on both, and the
one that waits is off the clock, as are start-up and saving. Afterwards both adapters are evaluated
in both environments.

The last line is JSON: `ratio` is the native seconds over the agent's.
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from harness import missing, parse, print_result, say
from learning import even_slices, process
from learning_ours import evaluate, open_trainer
from peers import versions_of

if TYPE_CHECKING:
    from vf.trainer.settings.config import Config

CONFIGS = Path(__file__).parents[1] / "configs"
NATIVE, AGENT = CONFIGS / "quickstart.toml", CONFIGS / "agent-calculator.toml"
TARGET = 1 / 1.5
PACKAGES = ("openai-agents", "openai", "torch", "transformers")


def descendants_cpu() -> float:
    """Return the CPU seconds of all that this process has started and that still runs."""
    parents, ticks = {}, {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            # The name, in brackets, may hold anything; behind it stand the state and the parent.
            fields = file.read_text(errors="replace").rpartition(")")[2].split()
            pid = int(file.parent.name)
            parents[pid], ticks[pid] = int(fields[1]), int(fields[11]) + int(fields[12])
    found, new = set[int](), {os.getpid()}
    while new := {pid for pid, parent in parents.items() if parent in new}:
        found |= new
    return sum(ticks[pid] for pid in found) / os.sysconf("SC_CLK_TCK")


def train(pipe: Connection, config: Config, folder: Path, slices: Sequence[int]) -> None:
    """Train; for each slice, wait until told to go, and send what it took and brought.

    That is seconds, CPU seconds of this process and of those that the agents run in, and rewards.
    On the clock is what `RLTrainer.train` does in every step. At the end, send the adapter's place.
    """
    with open_trainer(config, folder) as trainer:
        pipe.send("ready")
        for steps in slices:
            pipe.recv()
            # The next step's rollouts shall not begin at the end of a slice, off the clock.
            trainer.args.max_steps = trainer.step_count + steps
            wall, own, others = time.perf_counter(), time.process_time(), descendants_cpu()
            rewards = [trainer.step()["reward/mean"] for _ in range(steps)]
            cpu = time.process_time() - own, descendants_cpu() - others
            pipe.send((time.perf_counter() - wall, *cpu, rewards))
        pipe.send(trainer.save() / "model")


def held_out(config: Config, folder: Path, adapters: Sequence[Path]) -> list[float]:
    """Return the held-out reward of the model as it was, and with each adapter."""
    with process(evaluate, config, folder, adapters) as pipe:
        return [pipe.recv() for _ in range(len(adapters) + 1)]


def main() -> None:
    """Train both, and evaluate."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=30, help="of each (default: %(default)s)")
    parser.add_argument("--slices", type=int, default=10, help="in turn (default: %(default)s)")
    parser.add_argument("--threads", type=int, help="of torch, for each alike")
    parser.add_argument("--batch", type=int, default=64, help="rollouts of a step (64)")
    parser.add_argument("--eval-examples", type=int, default=200, help="held-out tasks (200)")
    args = parse(parser, steps=1, slices=1, batch=8, eval_examples=4)
    if find_spec("agents") is None:
        missing("openai-agents: pip install openai-agents")
    from vf.trainer.settings.load_config import load_config

    if args.threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(args.threads)  # read by the children
    overrides = [f"max_steps={args.steps}", f"batch_size={args.batch}"]
    overrides.append(f"eval_examples={args.eval_examples}")
    configs = {
        name: load_config(path, overrides)[0]
        for name, path in (("native", NATIVE), ("agent", AGENT))
    }
    slices = even_slices(args.steps, args.slices)
    wall, cpu, beside = (dict.fromkeys(configs, 0.0) for _ in range(3))
    say("starting both trainers")
    with tempfile.TemporaryDirectory(prefix="vf-agent-learning-") as scratch:
        folder = Path(scratch)
        with (
            process(train, configs["native"], folder / "native", slices) as native,
            process(train, configs["agent"], folder / "agent", slices) as agent,
        ):
            pipes = {"native": native, "agent": agent}
            for pipe in pipes.values():
                pipe.recv()
            for number, steps in enumerate(slices):
                for name in sorted(pipes, reverse=number % 2 == 1):
                    pipes[name].send("go")
                    seconds, used, others, rewards = pipes[name].recv()
                    wall[name], cpu[name] = wall[name] + seconds, cpu[name] + used
                    beside[name] += others
                    print(
                        f"{name:>6}  {seconds / steps:6.2f} s, {used / steps:6.2f} s of CPU and "
                        f"{others / steps:5.2f} s beside it a step, training reward "
                        f"{sum(rewards) / steps:.3f}",
                        flush=True,
                    )
            adapters = [pipe.recv() for pipe in pipes.values()]
        say("held-out evaluations")
        rewards_by = {
            name: dict(
                zip(
                    ("at the start", "after native", "after agent"),
                    held_out(config, folder / f"evaluation-{name}", adapters),
                    strict=True,
                )
            )
            for name, config in configs.items()
        }
    print_result(
        args,
        "agent_learning",
        ratio=round(wall["native"] / wall["agent"], 3),
        target=round(TARGET, 3),
        ratio_of_cpu=round(cpu["native"] / cpu["agent"], 3),
        seconds={name: round(seconds, 1) for name, seconds in wall.items()},
        cpu_seconds={name: round(seconds, 1) for name, seconds in cpu.items()},
        cpu_seconds_beside={name: round(seconds, 1) for name, seconds in beside.items()},
        held_out=rewards_by,
        options=vars(args),
        cores=os.cpu_count(),
        versions={"python": platform.python_version()} | versions_of(*PACKAGES),
    )


if __name__ == "__main__":
    main()
