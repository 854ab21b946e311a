"""`vf-rl CONFIG.toml` on a Ray cluster: from one of its machines, or submitted from outside."""

from __future__ import annotations

import argparse
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from vf.runtime.errors import ConfigError
from vf.runtime.terminal import note_line, show
from vf.trainer.processes.cluster_ranks import Ranks, run_ranks
from vf.trainer.processes.launch import FLEET
from vf.trainer.processes.placement import cluster_fleet, requested_processes
from vf.trainer.run.run_folder import RunFolder, make_folder
from vf.trainer.saving.checkpoint_files import latest_checkpoint
from vf.trainer.settings.write_config import to_toml

if TYPE_CHECKING:
    from rich.console import Console

    from vf.trainer.run.plan import Plan
    from vf.trainer.settings.config import Config


def run_on_cluster(
    args: argparse.Namespace, config: Config, console: Console, check: Callable[[], Plan]
) -> int:
    """Reserve what the run needs, and run its trainer's processes on the cluster.

    The first of them has the whole run, with its servers and workers. This process places them,
    shows their output, and starts them again if one of them is lost.

    Args:
        args: The parsed arguments of `vf-rl`.
        config: The settings.
        console: The console for progress messages.
        check: Checks the settings, raising ConfigError, and returns the run's plan.

    Raises:
        ConfigError: If something is wrong with the settings, or the cluster does not fit them.
    """
    config = _absolute(config)
    fleet = cluster_fleet(config)
    try:
        plan = check()
        roles = requested_processes(config, workers=plan.workers, gpus=fleet.has_gpus)
        fleet.reserve(roles)
        assert fleet.reservation is not None
        placed = ", ".join(f"{count} {role}{'s' * (count != 1)}" for role, count, _ in roles)
        show(console, [("cluster", f"{fleet.reservation.address}: {placed}")])
        (_, count, resources), *_ = roles
        with _arguments(args, config) as argv:
            ranks = Ranks(
                count,
                resources,
                argv,
                config.trainer.accelerate_config,
                {FLEET: fleet.reservation.to_text()},
                None if args.checkpoint is None else resume_later(args, argv),
            )
            whole_run = not (args.dry_run or args.profile)
            restarts = config.cluster.restarts_per_hour if whole_run else 0
            return run_ranks(
                fleet,
                ranks,
                restarts_per_hour=restarts,
                say=lambda text: console.print(note_line(text)),
            )
    finally:
        fleet.stop()


def submit(args: argparse.Namespace, config: Config, console: Console) -> int:
    """Submit a run to a cluster, show its output until it ends, and return its exit code.

    The TOML's folder goes along, or what ``cluster.runtime_env`` names as ``working_dir``.

    Args:
        args: The parsed arguments of `vf-rl`.
        config: The settings.
        console: The console for progress messages.

    Raises:
        ConfigError: If the cluster does not answer, or the run cannot go there as it is.
    """
    from vf.cluster.ray_jobs import submit_job

    if args.config is None:
        raise ConfigError(
            f"--resume {args.resume}: cluster.address = {config.cluster.address!r} submits runs "
            "that begin; resume this one on a machine of the cluster"
        )
    if not Path(config.args.output_dir).is_absolute():
        raise ConfigError(
            f"trainer.args.output_dir = {config.args.output_dir!r} is relative, and the cluster's "
            "machines have no common working folder: name a folder that they share, such as "
            "'/shared/runs'"
        )
    given = str(config.cluster.runtime_env.get("working_dir", args.config.parent))
    if "://" in given:
        raise ConfigError(
            f"cluster.runtime_env.working_dir = {given!r} is not a folder of this machine, and the "
            "TOML has to go to the cluster in it: name a folder, or leave it out for the TOML's own"
        )
    folder = Path(given).absolute()
    toml = args.config.absolute()
    if not toml.is_relative_to(folder):
        raise ConfigError(
            f"cluster.runtime_env.working_dir = {str(folder)!r} does not hold {toml}, which has to "
            "go to the cluster with it"
        )
    words = ["python", "-m", "vf.trainer.commands.main", str(toml.relative_to(folder))]
    words += [
        word for override in [*args.set, 'cluster.address="auto"'] for word in ("--set", override)
    ]
    words += ["--dry-run"] if args.dry_run else []
    words += ["--profile"] if args.profile else []
    return submit_job(
        config.cluster.address,
        shlex.join(words),
        {**config.cluster.runtime_env, "working_dir": str(folder)},
        say=lambda text: show(console, [("cluster", text)]),
    )


def resume_later(args: argparse.Namespace, argv: Sequence[str]) -> Callable[[], list[str]]:
    """Return what gives the arguments of the later starts of a run that resumes with ``--from``.

    Once the earlier checkpoint was loaded, those after it were set aside, and others are written in
    their place: from then on, the newest is resumed.

    Args:
        args: The parsed arguments of `vf-rl`.
        argv: The arguments of the first start.
    """
    checkpoints = RunFolder(args.resume).checkpoints

    def newest() -> tuple[str, int] | None:
        latest = latest_checkpoint(checkpoints)
        return None if latest is None else (latest.name, latest.stat().st_ino)

    before = newest()

    def again() -> list[str]:
        at = argv.index("--from")
        return [*argv] if newest() == before else [*argv[:at], *argv[at + 2 :]]

    return again


def _absolute(config: Config) -> Config:
    """Return the config with paths that do not depend on a machine's working folder."""
    config = config.with_args(output_dir=str(Path(config.args.output_dir).absolute()))
    if Path(config.model).is_dir():
        config = config.model_copy(update={"model": str(Path(config.model).absolute())})
    if (path := config.trainer.accelerate_config) is not None:
        whole = str(Path(path).expanduser().absolute())
        trainer = config.trainer.model_copy(update={"accelerate_config": whole})
        config = config.model_copy(update={"trainer": trainer})
    return config


@contextmanager
def _arguments(args: argparse.Namespace, config: Config) -> Iterator[list[str]]:
    """Yield the arguments with which each of the trainer's processes is started.

    A run is begun as it is resumed: from its folder, which all machines see.
    """
    if args.resume is not None:
        argv = ["--resume", str(args.resume.absolute())]
        argv += [word for override in args.set for word in ("--set", override)]
        argv += ["--allow-changes"] if args.allow_changes else []
        yield [*argv, *([] if args.checkpoint is None else ["--from", args.checkpoint])]
        return
    if not (args.dry_run or args.profile):
        folder = make_folder(config, args.config.stem)
        folder.write_config(to_toml(config))
        folder.close()
        yield ["--resume", str(folder.path)]
        return
    scratch = Path(tempfile.mkdtemp(prefix=".config-", dir=config.args.output_dir))
    try:
        copy = scratch / args.config.name
        copy.write_text(to_toml(config))
        yield [str(copy), "--dry-run" if args.dry_run else "--profile"]
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
