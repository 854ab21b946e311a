"""How fast a model learns: `python benchmarks/learning.py`.

The quickstart's task, model and settings (`configs/quickstart.toml`), trained by ours and by TRL's
`GRPOTrainer` with `environment_factory` (see `learning_trl.py` for what is the same and what is
not), with equally many rollouts. Each has a process of its own; they train a slice of the steps in
turn, so that whatever else the machine does falls on both, and the one that waits is off the clock,
as are start-up and saving. Afterwards a third process measures all adapters with our held-out
evaluation: the same tasks with the same seeds.

Writes a plot of the reward against rollouts and against wall time. The last line is JSON: `ratio`
is TRL's seconds over ours to the held-out reward `--reward`; if one of them never gets there, its
seconds over ours for all rollouts, which `ratio_of` says.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import missing, parse, print_result, say, spawn
from learning_ours import evaluate, train_ours
from learning_report import Curve, plot, summary, table
from learning_trl import train_trl
from peers import versions_of

if TYPE_CHECKING:
    from vf.trainer.settings.config import Config

CONFIG = Path(__file__).parent.parent / "configs" / "quickstart.toml"
TARGET = 1.0
TRAIN: dict[str, Callable[..., None]] = {"ours": train_ours, "trl": train_trl}
EXAMPLES = """\
examples:
  python benchmarks/learning.py                          as in benchmarks/results/learning.md
  python benchmarks/learning.py --rollouts 640 --seed 1
  python benchmarks/learning.py --smoke                  does everything work?
"""


@contextmanager
def process(target: Callable[..., None], *args: Any) -> Iterator[Connection]:
    """Run a function in a fresh process with one end of a pipe; yield the other end."""
    mine, theirs = spawn.Pipe()
    child = spawn.Process(target=target, args=(theirs, *args), daemon=True)
    child.start()
    theirs.close()
    try:
        yield mine
        child.join()
    except EOFError:
        child.join()
        raise SystemExit(f"learning: {target.__name__} ended with code {child.exitcode}") from None
    finally:
        child.kill()
        child.join()


def in_turns(config: Config, folder: Path, slices: Sequence[int]) -> tuple[Curve, Curve]:
    """Train both, slice by slice in turn.

    A child sends its start-up seconds. Then, for each slice: it is told to go, does that many
    steps, and sends their seconds, their mean training rewards, and where it saved the adapter.
    """
    say("starting both trainers")
    with (
        process(train_ours, config, folder / "ours", slices) as ours,
        process(train_trl, config, folder / "trl", slices) as trl,
    ):
        pipes = {"ours": ours, "trl": trl}
        curves = {name: Curve(name, pipe.recv()) for name, pipe in pipes.items()}
        for number in range(len(slices)):
            for name in sorted(pipes, reverse=number % 2 == 1):
                pipes[name].send("go")
                curves[name].add(*pipes[name].recv())
                show(f"{name:>5}  step {curves[name].steps[-1]:3}", curves[name], slices[number])
    return curves["ours"], curves["trl"]


def show(what: str, curve: Curve, steps: int) -> None:
    seconds, rewards = curve.step_seconds[-steps:], curve.train_rewards[-steps:]
    print(
        f"{what}  {sum(seconds) / steps:6.2f} s a step  training reward {sum(rewards) / steps:.3f}",
        flush=True,
    )


def measure(config: Config, folder: Path, curves: Sequence[Curve]) -> None:
    """Evaluate all adapters, and the model without one, which is where both began."""
    say("held-out evaluations")
    adapters = [adapter for curve in curves for adapter in curve.adapters]
    with process(evaluate, config, folder / "evaluation", adapters) as pipe:
        start = pipe.recv()
        for curve in curves:
            curve.held_out = [start, *(pipe.recv() for _ in curve.adapters)]


def even_slices(steps: int, count: int) -> list[int]:
    """Return ``count`` numbers that sum to ``steps`` and differ by at most 1."""
    marks = [round(steps * index / count) for index in range(count + 1)]
    return [after - before for before, after in pairwise(marks)]


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0],
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--rollouts", type=int, default=1920, help="of each (default: %(default)s)")
    add("--evaluations", type=int, default=10, help="held-out ones, evenly spread (%(default)s)")
    add("--eval-examples", type=int, default=200, help="tasks in each (%(default)s)")
    add("--reward", type=float, default=0.8, help="the held-out reward to reach (%(default)s)")
    add("--threads", type=int, help="of torch, for each alike (by default torch's own choice)")
    add("--seed", type=int, default=0, help="of the run (%(default)s)")
    add("--plot", type=Path, default=Path("learning.png"), help="where it goes (%(default)s)")
    args = parse(parser, rollouts=64, evaluations=1, eval_examples=8)
    for name in ("trl", "matplotlib"):
        if find_spec(name) is None:
            missing(f"the package {name!r}: pip install 'vf-rl[train,dev]'")
    return args


def main() -> None:
    args = parse_args()
    from vf.runtime.errors import ConfigError
    from vf.trainer.settings.load_config import load_config

    overrides = [f"seed={args.seed}", f"eval_examples={args.eval_examples}"]
    config, _ = load_config(CONFIG, overrides)
    batch = config.args.batch_size
    steps, rest = divmod(args.rollouts, batch)
    try:
        if rest or steps < 1:
            raise ConfigError(f"--rollouts {args.rollouts} is not a multiple of {batch}, one step")
        if not 1 <= args.evaluations <= steps:
            raise ConfigError(
                f"--evaluations {args.evaluations}: must be 1 to {steps}, the steps that "
                f"--rollouts {args.rollouts} make"
            )
        config, _ = load_config(CONFIG, [*overrides, f"max_steps={steps}"])
    except ConfigError as error:
        print(f"learning: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    if args.threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(args.threads)  # read by the children
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="vf-learning-") as scratch:
        curves = in_turns(config, Path(scratch), even_slices(steps, args.evaluations))
        measure(config, Path(scratch), curves)
        if args.smoke:
            args.plot = Path(scratch) / args.plot.name
        plot(curves, batch, args.reward, args.plot)
    print(table(*curves, batch))
    print(f"plot: {args.plot}")
    print_result(
        args,
        "learning",
        target=TARGET,
        **summary(*curves, args.rollouts, args.reward),
        options=vars(args) | {"plot": str(args.plot)},
        cores=os.cpu_count(),
        minutes=round((time.perf_counter() - started) / 60, 1),
        versions={"python": platform.python_version()}
        | versions_of("trl", "transformers", "torch", "peft"),
    )


if __name__ == "__main__":
    main()
