"""`vf-rl`: launch a training run from one TOML."""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vf.runtime.command import DONE, complain, run_command, show
from vf.runtime.errors import ConfigError
from vf.runtime.signals import end_with_parent, orderly_end
from vf.trainer.processes.launch import launch, narrow_devices, processes_to_launch, world
from vf.trainer.processes.tmux import attach, check_installed, open_session

if TYPE_CHECKING:
    from rich.console import Console

    from vf.trainer.run.plan import Plan
    from vf.trainer.run.run_folder import RunFolder
    from vf.trainer.run.summary import Summary
    from vf.trainer.settings.config import Config

# Other packages install commands called `vf-eval` and `vf-init` too: ours have a second name.
COMMANDS = {
    "check-template": "vf.trainer.commands.check_template",
    "eval": "vf.trainer.commands.eval",
    "export": "vf.trainer.commands.export",
    "init": "vf.trainer.commands.init",
    "sft": "vf.trainer.commands.sft",
    "view": "vf.trainer.commands.view",
}

EXAMPLES = """\
examples:
  vf-rl configs/quickstart.toml
  vf-rl configs/quickstart.toml --dry-run
  vf-rl configs/quickstart.toml --set max_steps=20 --set env.args.max_operations=3
  vf-rl configs/quickstart.toml --tmux
  vf-rl configs/quickstart.toml --profile    where does a step's time go?
  vf-rl --resume runs/quickstart-1
  vf-rl check-template tiny             does the model's chat template keep the context growing?
  vf-rl export runs/quickstart-1        a model that transformers and vLLM load
  vf-rl sft configs/sft/calculator.toml learns from the best saved traces; the same as vf-sft
  vf-rl eval, vf-rl init, vf-rl view    the same as vf-eval, vf-init and vf-view

A bare name in --set means [trainer.args]. Exit codes: 0 done, 1 failed, 2 bad usage or config.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    if argv and argv[0] in COMMANDS:
        command = importlib.import_module(COMMANDS[argv[0]])
        return int(command.main(argv[1:]))
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
    parser.add_argument(
        "--allow-changes",
        action="store_true",
        help="--resume even if settings or the model differ from the checkpoint's; what --set "
        "changes is allowed anyway",
    )
    parser.add_argument(
        "--tmux",
        action="store_true",
        help="run in a tmux session of its own, with panes for the trainer, the inference log and "
        "the environment log; the run goes on when you detach, ends with the trainer's pane, and "
        "leaves the session to be read",
    )
    parser.add_argument(
        "--profile",
        action="store_true",
        help="train one step to warm up and one under torch's profiler, without evaluation and "
        "checkpoints, print where its time went, and stop; Chrome and Perfetto open the trace, "
        "profile/step-N.json.gz in the run's folder",
    )
    args = parser.parse_args(argv)
    if (args.config is None) == (args.resume is None):
        parser.error("name either a config to run or a run to --resume")
    if args.allow_changes and args.resume is None:
        parser.error("--allow-changes goes with --resume")
    if args.resume is not None and args.dry_run:
        parser.error("--dry-run starts nothing, so there is nothing to --resume")
    if args.tmux and args.dry_run:
        parser.error("--dry-run ends at once and needs no --tmux")
    if args.profile and (args.dry_run or args.resume is not None):
        parser.error("--profile starts a run of its own; leave out --dry-run and --resume")
    if args.tmux and world().size > 1:
        parser.error("--tmux starts the launcher itself; leave one of the two out")

    def run() -> int:
        with orderly_end(launched=world().size > 1):
            return _run(args, argv)

    return run_command("vf-rl", run, kept="finished traces and checkpoints are kept", extra="train")


def _run(args: argparse.Namespace, argv: list[str]) -> int:
    from rich.console import Console

    from vf.trainer.run.run_folder import RunFolder, choose_folder
    from vf.trainer.settings.load_config import load_config

    console = Console(highlight=False)
    if args.resume is not None:
        config, notes = load_config(RunFolder(args.resume).config, args.set)
    else:
        config, notes = load_config(args.config, args.set)
    if args.profile and config.args.max_steps < 2:
        raise ConfigError("trainer.args.max_steps = 1, but --profile trains two steps; raise it")
    if world().size > 1:
        end_with_parent()
    if world().rank > 0:
        return _follow(config)
    folder = RunFolder(args.resume or choose_folder(config, args.config.stem))
    if args.tmux:
        check_installed()
    narrow_devices(config)
    if args.tmux:
        _preflight(config, console)  # here, so that nothing is opened for a config that is wrong
        return _open_tmux(folder, args)
    if (count := processes_to_launch(config)) > 1:
        _preflight(config, console)  # as above
        return launch(count, argv, config.trainer.accelerate_config)
    for note in notes:
        console.print(f"[yellow]note:[/yellow] {note}")
    for note in _cautions(config):
        console.print(f"[yellow]note:[/yellow] {note}")
    plan = _preflight(config, console)
    from vf.trainer.watching.plan_text import describe

    show(console, describe(plan))
    if args.dry_run:
        return _dry_run(plan, console)
    return _train(plan, folder, console, args)


def _open_tmux(folder: RunFolder, args: argparse.Namespace) -> int:
    command = [sys.executable, "-m", "vf.trainer.commands.train"]
    command += [part for override in args.set for part in ("--set", override)]
    if args.resume is not None:
        command += ["--resume", str(args.resume)]
        command += ["--allow-changes"] if args.allow_changes else []
    else:
        command += [str(args.config), "--set", f"run_name={json.dumps(folder.path.name)}"]
        command += ["--profile"] if args.profile else []
    return attach(open_session(folder, command))


def _preflight(config: Config, console: Console) -> Plan:
    with console.status("checking the config ..."):
        _quiet()
        from vf.trainer.preflight import preflight

        return preflight(config)


def _follow(config: Config) -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Nothing needs to be closed here, and a process that waits in a sum could not notice.
        signal.signal(number, signal.SIG_DFL)
    logging.captureWarnings(True)  # rank 0 has the same ones
    _quiet()
    from vf.trainer.follower import follow

    follow(config)
    return DONE


def _train(plan: Plan, folder: RunFolder, console: Console, args: argparse.Namespace) -> int:
    from vf.trainer.profile import profile_step
    from vf.trainer.rl_trainer import RLTrainer
    from vf.trainer.settings.load_config import overridden
    from vf.trainer.settings.write_config import to_toml
    from vf.trainer.watching.terminal import TerminalDisplay

    resuming = args.resume is not None
    if resuming:
        folder.open()
    else:
        folder.create()
        folder.write_config(to_toml(plan.config))
    show(console, [("run", str(folder.path))])
    with RLTrainer(plan, folder, TerminalDisplay(console)) as trainer:
        if resuming:
            step = trainer.resume(overridden(args.set), allow_changes=args.allow_changes)
            console.print(f"resumed after step {step}" if step else "begun anew: no checkpoint yet")
            folder.write_config(to_toml(plan.config))
        if args.profile:
            profile = profile_step(trainer)
        else:
            summary = trainer.train()
    if args.profile:
        console.print(profile.table())
        show(console, [("trace", str(profile.trace))])
        return DONE
    _summarise(summary, folder, plan.config, console)
    return DONE


def _dry_run(plan: Plan, console: Console) -> int:
    import tempfile

    from vf.trainer.rl_trainer import RLTrainer
    from vf.trainer.run.run_folder import RunFolder

    with (
        console.status("starting model, engine and one rollout ..."),
        tempfile.TemporaryDirectory() as scratch,
    ):
        folder = RunFolder(Path(scratch) / "dry-run")
        folder.create()
        with RLTrainer(plan, folder) as trainer:
            trace = trainer.collector.try_one()
    if trace.error is not None:
        return complain(
            "vf-rl", f"a rollout failed, in the {trace.error.boundary}: {trace.error.message}"
        )
    reward = "not scored" if trace.reward is None else f"reward {trace.reward:.2f}"
    console.print(
        f"[green]all can start[/green]: one rollout took {trace.timing['total']:.1f} s, "
        f"{len(trace.turns)} turns, {trace.completion_tokens} sampled tokens, {reward}"
    )
    return DONE


def _summarise(summary: Summary, folder: RunFolder, config: Config, console: Console) -> None:
    from vf.trainer.watching.verdict import verdict

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
    for said in verdict(folder.read_metrics(), config).advice:
        rows.append(("time", said))
    console.print()
    show(console, rows)


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
    cautions = []
    if args.num_iterations > 1 and args.loss_fn == "importance_sampling":
        cautions.append(
            f"num_iterations = {args.num_iterations} trains on each batch again with weights that "
            "have moved, and loss_fn = 'importance_sampling' does not bound the ratio: ppo, cispo, "
            "gspo and dppo do"
        )
    if filters:
        cautions.append(
            f"{', '.join(filters)} changes the distribution that is sampled from, but not the one "
            "that is trained: the importance ratio will be biased, and kl_sample_train_v1 will "
            "show it"
        )
    return cautions


def _quiet() -> None:
    """Keep libraries' progress bars and advice off the terminal; errors still show."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


if __name__ == "__main__":
    sys.exit(main())
