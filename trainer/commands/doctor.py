"""`vf-rl doctor`: what this machine can do, what is missing, and whether a TOML fits."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vf.runtime.command import DONE, FAILED, CommandParser, quiet_transformers, run_command
from vf.runtime.errors import ConfigError
from vf.runtime.terminal import ACCENT, BAD, CAUTION, GOOD, make_console, note_line

if TYPE_CHECKING:
    from rich.console import Console

    from vf.trainer.installed_packages import Check
    from vf.trainer.settings.config import Config

EXAMPLES = """\
examples:
  vf-rl doctor                               check this machine
  vf-rl doctor run.toml                      and whether it can run this TOML
  vf-rl doctor run.toml --gpu-memory 24      whether a GPU of 24 GB can
  vf-rl doctor run.toml --gpu-memory 80 --gpus 8
                                             whether eight of 80 GB can, and who has which

Exit codes: 0 nothing needed is missing, 1 something is, 2 bad usage or config."""
STYLES = {"ok": GOOD, "note": CAUTION, "missing": f"bold {BAD}"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = CommandParser(
        prog="vf-rl doctor",
        description="Say what this machine can do, what is missing, and how to get it.",
        epilog=EXAMPLES,
    )
    add = parser.add_argument
    add("config", nargs="?", type=Path, metavar="CONFIG.toml", help="a run to check it for")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="override a setting")
    add(
        "--gpu-memory",
        type=_gigabytes,
        metavar="GB",
        help="predict the TOML's memory on GPUs of this size (1 GB is 10⁹ bytes); "
        "this machine is not checked",
    )
    add(
        "--gpus",
        type=_number,
        metavar="N",
        help="with --gpu-memory: how many there are (default: as many as the TOML names)",
    )
    args = parser.parse_args(sys.argv[1:] if argv is None else argv)
    if args.gpus is not None and args.gpu_memory is None:
        parser.error("--gpus needs --gpu-memory: without it, this machine's are counted")
    if args.config is None and (args.set or args.gpu_memory):
        parser.error(f"{'--set' if args.set else '--gpu-memory'} needs a CONFIG.toml")
    return run_command("vf-rl doctor", lambda: _doctor(args), extra="train")


def _gigabytes(text: str) -> float:
    try:
        size = float(text)
    except ValueError:
        size = 0.0
    if not 0 < size < 10**5:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size in GB, such as 24")
    return size


def _number(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of GPUs, such as 8")
    return int(text)


def _doctor(args: argparse.Namespace) -> int:
    from vf.trainer.processes.gpus import least_gpus
    from vf.trainer.settings.load_config import load_config

    console, config = make_console(), None
    if args.config is not None:
        config, notes = load_config(args.config, args.set)
        for note in notes:
            console.print(note_line(note))
    if config is not None and args.gpu_memory is not None:
        config, split = _split(config, args.gpus or least_gpus(config))
        checks = itertools.chain(split, _memory(config, args.gpu_memory))
        return _show(console, checks, f"{args.config} fits")
    fine = (
        "no faults; a note is what some runs need" if config is None else f"{args.config} can run"
    )
    return _show(console, _checks(config), fine)


def _checks(config: Config | None) -> Iterator[Check]:
    """Yield the checks of this machine, and of a run on it."""
    from vf.inference.settings import VllmSettings
    from vf.trainer.installed_packages import check_packages, check_vllm
    from vf.trainer.machine import (
        check_containers,
        check_disk,
        check_gpus,
        check_machine,
        visible_gpus,
    )
    from vf.trainer.processes.devices import narrow_devices
    from vf.trainer.processes.gpus import count_gpus

    if config is not None:
        config, split = _split(config, count_gpus())
        yield from split
        yield from _try("devices", lambda: narrow_devices(config))
    yield from check_machine()
    if config is None:
        yield check_disk(Path("runs"))
    packages = check_packages(needed=config is not None)
    yield packages
    yield from check_gpus(visible_gpus())
    server = config.inference.started if config else None
    if config is None or server is not None:
        yield check_vllm(server or VllmSettings(), needed=server is not None)
    yield check_containers()
    if config is not None and packages.level != "missing":
        yield from _run(config)
        yield from _memory(config)


def _split(config: Config, total: int) -> tuple[Config, list[Check]]:
    """Return a config in which the GPUs are shared out, and a check that says how, if any are."""
    from vf.trainer.installed_packages import Check
    from vf.trainer.processes.gpus import split_gpus

    filled, why = split_gpus(config, total)
    return filled, [Check("GPUs", why)] if why else []


def _run(config: Config) -> Iterator[Check]:
    """Yield the checks of what a run needs, beside memory."""
    import asyncio

    from vf.runtime.calling import call
    from vf.trainer.learning.model.quantized import check_quantized
    from vf.trainer.processes.devices import check_devices, check_server_devices
    from vf.trainer.run.components import make_environments
    from vf.trainer.watching.trackers import check_trackers

    async def check_all() -> None:
        for environment in make_environments(config).values():
            await call(environment.check)

    yield from _try("devices", lambda: check_devices(config), lambda: check_server_devices(config))
    yield from _try(
        "packages",
        lambda: check_trackers(config.args.report_to),
        lambda: check_quantized(config.args),
    )
    yield from _try(
        "environment",
        lambda: asyncio.run(check_all()),
        success=f"{', '.join(env.id for env in config.env)} has what it needs",
    )


def _memory(config: Config, gigabytes: float | None = None) -> Iterator[Check]:
    """Yield what trainer and server are predicted to need, and whether it is there.

    Args:
        config: The run.
        gigabytes: Memory of each GPU; by default, this machine's device.
    """
    from vf.trainer.installed_packages import Check
    from vf.trainer.learning.memory.fit import Device, check_fit, disk_needed, plan_memory, settle
    from vf.trainer.machine import check_disk
    from vf.trainer.preflight import model_shape, read_model_config
    from vf.trainer.watching.plan_text import describe_memory

    quiet_transformers()
    try:
        shape = model_shape(read_model_config(config.model))
    except ConfigError as error:
        yield Check("model", str(error), "missing")
        return
    device = Device.here() if gigabytes is None else Device.of(gigabytes)
    if not device.cuda and (config.trainer.gpus or getattr(config.inference, "gpus", None)):
        reason = "not predicted, for this run's GPUs are not here; say how large they are"
        yield Check("memory", reason, "note", "vf-rl doctor CONFIG.toml --gpu-memory GB")
        return
    config, budget = settle(config, shape, device)
    memory = plan_memory(config, shape, device)
    yield Check("model", f"{config.model}: {shape.parameters / 1e6:,.2f} M parameters")
    for name, text in describe_memory(memory, config.args.max_seq_len):
        yield Check(name, text)
    if budget:
        yield Check("micro-batch", budget)
    if gigabytes is None:
        yield check_disk(Path(config.args.output_dir), disk_needed(config, shape))
    yield from _try("fits", lambda: check_fit(memory, config), success=f"on {device.name}")


def _try(name: str, *checks: Callable[[], None], success: str = "") -> Iterator[Check]:
    """Yield a finding for each check that raises; if none does, ``success`` unless it is empty."""
    from vf.trainer.installed_packages import Check

    fine = True
    for check in checks:
        try:
            check()
        except ConfigError as error:
            fine = False
            yield Check(name, str(error), "missing")
    if fine and success:
        yield Check(name, success)


def _show(console: Console, checks: Iterator[Check], fine: str) -> int:
    """Print a line for each check, as it is made, and return the exit code."""
    from rich.table import Table
    from rich.text import Text

    missing = 0
    for check in checks:
        row = Table.grid(padding=(0, 2, 0, 0))
        row.add_column(width=7, no_wrap=True)
        row.add_column(width=11, no_wrap=True)
        row.add_column(overflow="fold")
        style = STYLES[check.level]
        row.add_row(Text(check.level, style=style), Text(check.name, style="bold"), check.finding)
        console.print(row)
        if check.fix:  # on a line of its own, whole: it is to be copied
            console.print(Text.assemble(" " * 22, (check.fix, ACCENT)), soft_wrap=True)
        missing += check.level == "missing"
    if not missing:
        console.print(Text(fine, style=GOOD))
        return DONE
    console.print(Text(f"missing: {missing}", style=BAD))
    return FAILED


if __name__ == "__main__":
    sys.exit(main())
