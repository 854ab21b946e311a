"""`vf-rl cluster`: print what starts a run under SLURM, or on Kubernetes with KubeRay."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from vf.runtime.command import DONE, CommandParser, add_subcommand, run_command
from vf.runtime.errors import ConfigError
from vf.runtime.json_output import own_stdout

if TYPE_CHECKING:
    from vf.cluster.fleet import Resources, Role
    from vf.cluster.launch_files import Job
    from vf.trainer.settings.config import Config

IMAGE = "REGISTRY/vf-rl:TAG"
CONFIG_MAP_BYTES = 900_000  # of the 1 MiB that Kubernetes takes, names and all
EXAMPLES = """\
examples:
  vf-rl cluster slurm run.toml > run.sbatch
  vf-rl cluster kuberay run.toml --image ghcr.io/me/vf-rl:1 > run.yaml

Exit codes: 0 done, 2 bad usage or config."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = CommandParser(
        prog="vf-rl cluster",
        description="Print a file that starts a run on a cluster: to read, change and submit.",
        epilog=EXAMPLES,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    slurm = add_subcommand(
        commands,
        "slurm",
        "print a batch script for SLURM",
        "run.toml > run.sbatch && sbatch run.sbatch",
        "run.toml --gpus-per-node 4 --set trainer.gpus=4 > run.sbatch",
    )
    kuberay = add_subcommand(
        commands,
        "kuberay",
        "print a RayJob for Kubernetes with KubeRay",
        "run.toml --image ghcr.io/me/vf-rl:1 > run.yaml && kubectl apply -f run.yaml",
    )
    for subparser in (slurm, kuberay):
        add = subparser.add_argument
        add("config", type=Path, metavar="CONFIG.toml", help="the run")
        add("--set", action="append", default=[], metavar="KEY=VALUE", help="override a setting")
        add("--gpus-per-node", type=_count, metavar="N", help="default: 8, or what the run takes")
        add("--cpus-per-node", type=_count, metavar="N", help="default: 8 for each GPU")
        add("--memory-per-node", type=_count, metavar="GIB", help="default: 64 for each GPU")
    kuberay.add_argument(
        "--image", default=IMAGE, help="with vf-rl, Ray and all that the run needs"
    )
    args = parser.parse_args(sys.argv[1:] if argv is None else argv)
    return run_command("vf-rl cluster", lambda: _print(args), extra="train")


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def _print(args: argparse.Namespace) -> int:
    from vf.cluster.launch_files import Pods, kuberay, slurm
    from vf.trainer.settings.load_config import load_config

    with own_stdout(True):  # an environment may print while it is made
        config, notes = load_config(args.config, args.set)
        for note in notes:
            print(f"note: {note}", file=sys.stderr)
        job = _job(args, config)
        if args.command == "slurm":
            runs = Path(config.args.output_dir).absolute()
            programs = Path(sys.executable).parent
            text = slurm(job, args.config.absolute(), runs, programs, Path.cwd())
        else:
            files, changed = _files(args.config, config)
            text = kuberay(job, Pods(args.image, _ray_version(), files, changed))
    print(text, end="")
    return DONE


def _job(args: argparse.Namespace, config: Config) -> Job:
    """Return what a launch file says of a run. A run that SLURM gives one node can do without Ray.

    Raises:
        ConfigError: If a process of it fits on no node, or the settings do not fit a cluster.
    """
    from vf.cluster.launch_files import Job, NodeSize, job_name, nodes_needed, roles
    from vf.trainer.processes.gpus import split_gpus
    from vf.trainer.processes.placement import requested_processes
    from vf.trainer.run.worker_count import worker_count
    from vf.trainer.settings.load_config import load_config, overridden

    numbered = [config.trainer.devices or [], getattr(config.inference, "gpus", None) or []]
    gpus = args.gpus_per_node != 0
    needed = max(
        sum(
            count * size.gpus
            for _, count, size in requested_processes(config, workers=0, gpus=gpus)
        ),
        *(max(devices, default=-1) + 1 for devices in numbered),
    )
    node = NodeSize.of(needed, args.gpus_per_node, args.cpus_per_node, args.memory_per_node)

    def processes(config: Config) -> list[tuple[Role, int, Resources]]:
        workers, _ = worker_count(config, node.cpus, None)
        return requested_processes(config, workers=workers, gpus=gpus)

    placed = processes(config)
    wants_ray = args.command == "kuberay" or config.cluster.backend == "ray"
    if ray := wants_ray or nodes_needed(placed, node) > 1:
        # See that the settings fit, before the run does. Its workers are as many as Ray gives.
        config, _ = load_config(args.config, [*args.set, "cluster.backend=ray"])
        placed = processes(config)
    lines = roles(placed)
    if not ray:
        _, why = split_gpus(config, node.gpus)
        lines = [f"GPUs: {why}" if why else "all on one GPU" if node.gpus else "all on CPUs"]
    named = config.args.run_name or ""
    ours = {"trainer.args.run_name", "trainer.args.output_dir"}
    return Job(
        title=f"{config.model} in {', '.join(Path(env.id).name for env in config.env)}",
        name=job_name(named or args.config.stem),
        run_name=named,
        nodes=nodes_needed(placed, node),
        node=node,
        ray=ray,
        placed=lines,
        settings=[override for override in args.set if not overridden([override]) & ours],
    )


def _ray_version() -> str:
    try:
        return version("ray")
    except PackageNotFoundError:
        return ""


def _of_environments(config: Config) -> dict[str, str]:
    """Return the settings of environments that may name files, as --set names them."""
    return {
        f"{table}.{key}": value
        for table, env in zip(config.tables, config.env, strict=True)
        for key, value in (("id", env.id), ("curriculum", env.curriculum))
    }


def _files(path: Path, config: Config) -> tuple[dict[str, str], list[str]]:
    """Return the files of a run that are no package's, for pods that do not see this machine.

    Returns:
        Texts by name, the TOML's first; and settings that name the files there.

    Raises:
        ConfigError: If two have one name, or it is more than a ConfigMap holds.
    """
    from vf.cluster.launch_files import POD_FOLDER

    named = {
        **_of_environments(config),
        "trainer.accelerate_config": config.trainer.accelerate_config,
        "trainer.args.import_path": config.args.import_path,
        "inference.chat_template": config.inference.chat_template,
    }
    texts, settings = {_key(path): path.read_text()}, []
    for setting, value in named.items():
        where, colon, rest = (value or "").partition(":")
        file = Path(where).expanduser()
        if where and file.is_file():
            text = file.read_text()
            if texts.setdefault(_key(file), text) != text:
                raise ConfigError(
                    f"{setting} = {value!r}: the TOML names another file, too, that pods would get "
                    f"as {_key(file)}; give one of them another name"
                )
            settings.append(f"{setting}={POD_FOLDER}/{_key(file)}{colon}{rest}")
    size = sum(len(text.encode()) for text in texts.values())
    if size > CONFIG_MAP_BYTES:
        raise ConfigError(
            f"{', '.join(texts)} are {size:,} bytes together, and a ConfigMap holds "
            f"{CONFIG_MAP_BYTES:,}: put the environment into a package that the image has"
        )
    return texts, settings


def _key(file: Path) -> str:
    """Return a file's name as a ConfigMap takes it."""
    return re.sub(r"[^\w.-]", "-", file.name, flags=re.ASCII)


if __name__ == "__main__":
    sys.exit(main())
