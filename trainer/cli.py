"""`vf-rl`: launch a training run from one TOML."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vf.traces.errors import ConfigError, VfError

if TYPE_CHECKING:
    from rich.console import Console

    from vf.trainer.config import Config
    from vf.trainer.preflight import Plan
    from vf.trainer.rl_trainer import Summary
    from vf.trainer.run_folder import RunFolder

DONE, FAILED, BAD_USAGE, INTERRUPTED = 0, 1, 2, 130

EXAMPLES = """\
examples:
  vf-rl configs/quickstart.toml
  vf-rl configs/quickstart.toml --dry-run
  vf-rl configs/quickstart.toml --set max_steps=20 --set env.args.max_operations=3
  vf-rl --resume runs/quickstart-1

A bare name in --set means [trainer.args]. Exit codes: 0 done, 1 failed, 2 bad usage or config.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="vf-rl",
        description="Train a language model in a multi-turn, tool-using environment.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", nargs="?", type=Path, help="the run's TOML")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a setting"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the plan, check that all can start, and stop"
    )
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="RUN",
        help="continue a run's folder from its last checkpoint",
    )
    args = parser.parse_args(argv)
    if (args.config is None) == (args.resume is None):
        parser.error("name either a config to run or a run to --resume")
    if args.resume is not None and args.dry_run:
        parser.error("--dry-run starts nothing, so there is nothing to --resume")
    try:
        return _run(args.config, args.set, args.resume, args.dry_run)
    except ConfigError as error:
        _complain(str(error))
        return BAD_USAGE
    except VfError as error:
        logging.getLogger("vf").exception("the run failed")
        _complain(str(error))
        return FAILED
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "vf":
            raise
        _complain(f"training needs the package {error.name!r}: pip install 'vf-rl[train]'")
        return BAD_USAGE
    except KeyboardInterrupt:
        _complain("interrupted; finished traces and checkpoints are kept")
        return INTERRUPTED


def _run(path: Path | None, overrides: list[str], resume: Path | None, dry_run: bool) -> int:
    from rich.console import Console

    from vf.trainer.load_config import load_config
    from vf.trainer.run_folder import RunFolder, choose_folder

    console = Console(highlight=False)
    if resume is not None:
        folder = RunFolder(resume)
        config, notes = load_config(folder.config, overrides)
    else:
        assert path is not None
        config, notes = load_config(path, overrides)
        folder = RunFolder(choose_folder(config, path.stem))
    for note in notes:
        console.print(f"[yellow]note:[/yellow] {note}")
    for note in _cautions(config):
        console.print(f"[yellow]note:[/yellow] {note}")
    with console.status("checking the config ..."):
        _quiet()
        from vf.trainer.preflight import preflight

        plan = preflight(config)
    for name, text in plan.describe():
        console.print(f"[bold]{name:>12}[/bold]  {text}", soft_wrap=True)
    if dry_run:
        return _dry_run(plan, console)
    return _train(plan, folder, console, resuming=resume is not None)


def _train(plan: Plan, folder: RunFolder, console: Console, *, resuming: bool) -> int:
    from vf.trainer.display import TerminalDisplay
    from vf.trainer.rl_trainer import RLTrainer
    from vf.trainer.write_config import to_toml

    if resuming:
        folder.open()
    else:
        folder.create()
    folder.config.write_text(to_toml(plan.config))
    console.print(f"[bold]{'run':>12}[/bold]  {folder.path}")
    with RLTrainer(plan, folder, TerminalDisplay(console)) as trainer:
        if resuming:
            console.print(f"resumed after step {trainer.resume()}")
        summary = trainer.train()
    _summarise(summary, folder, console)
    return DONE


def _dry_run(plan: Plan, console: Console) -> int:
    import tempfile

    from vf.trainer.rl_trainer import RLTrainer
    from vf.trainer.run_folder import RunFolder

    with (
        console.status("starting model, engine and one rollout ..."),
        tempfile.TemporaryDirectory() as scratch,
    ):
        folder = RunFolder(Path(scratch) / "dry-run")
        folder.create()
        with RLTrainer(plan, folder) as trainer:
            trace = trainer.try_one()
    if trace.error is not None:
        _complain(f"a rollout failed, in the {trace.error.boundary}: {trace.error.message}")
        return FAILED
    console.print(
        f"[green]all can start[/green]: one rollout took {trace.timing['total']:.1f} s, "
        f"{len(trace.turns)} turns, {trace.completion_tokens} sampled tokens, "
        f"reward {trace.reward:.2f}"
    )
    return DONE


def _summarise(summary: Summary, folder: RunFolder, console: Console) -> None:
    rows = [("steps", f"{summary.steps} in {summary.seconds:.0f} s")]
    if summary.eval_before is not None and summary.eval_after is not None:
        rows.insert(0, ("held out", f"reward {summary.eval_before:.3f} → {summary.eval_after:.3f}"))
    rows += [
        ("report", str(folder.report)),
        ("traces", f"{folder.traces}/"),
        ("metrics", str(folder.metrics)),
        ("checkpoint", str(summary.checkpoint)),
        ("train on", f"vf-rl --resume {folder.path} --set max_steps={2 * summary.steps}"),
    ]
    console.print()
    for name, text in rows:
        console.print(f"[bold]{name:>12}[/bold]  {text}", soft_wrap=True)


def _cautions(config: Config) -> list[str]:
    """Return what a user should know about settings that are allowed but have a price."""
    args = config.args
    filters = [
        name
        for name, neutral in (
            ("top_p", 1.0),
            ("top_k", 0),
            ("min_p", 0.0),
            ("repetition_penalty", 1.0),
        )
        if getattr(args, name) != neutral
    ]
    if not filters:
        return []
    return [
        f"{', '.join(filters)} changes the distribution that is sampled from, but not the one "
        "that is trained: the importance ratio will be biased, and kl_sample_train_v1 will show it"
    ]


def _quiet() -> None:
    """Keep libraries' progress bars and advice off the terminal; errors still show."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


def _complain(text: str) -> None:
    print(f"vf-rl: {text}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
