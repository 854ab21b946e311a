"""`vf-rl mismatch`: where sampler and trainer differ, and what each correction would cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vf.runtime.command import (
    DONE,
    CommandParser,
    check_run_exists,
    quiet_transformers,
    run_command,
    runs_in,
)
from vf.runtime.errors import ConfigError
from vf.runtime.heartbeat import working
from vf.runtime.json_output import own_stdout, print_json
from vf.runtime.open_files import raise_limit
from vf.runtime.uninterruptible import wait_for

if TYPE_CHECKING:
    import argparse

    from rich.table import Table

    from vf.trainer.watching.mismatch import Gap, Mismatch

EPILOG = """\
examples:
  vf-rl mismatch runs/quickstart-1
  vf-rl mismatch runs/quickstart-1 --json
  vf-rl mismatch configs/quickstart.toml --set batch_size=16

Of a run's folder, reads the groups that it kept (trainer.args.learned_groups); nothing is computed
again. With a TOML, samples one step's rollouts as the run would, compares them with the trainer,
and tells what bfloat16 would change by the kind of layer. It trains nothing and keeps nothing.
Exit codes: 0 done, 1 failed, 2 bad usage or config, or a run that kept nothing.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = CommandParser(
        prog="vf-rl mismatch",
        description="Show by how much sampler and trainer differ, and on which tokens; price the "
        "corrections.",
        epilog=EPILOG,
    )
    parser.add_argument(
        "run", type=Path, metavar="RUN", help="folder of a run, or the TOML of one to come"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override a TOML's setting"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)

    def run() -> int:
        with own_stdout(args.json):
            mismatch = _sample(args.run, args.set) if args.run.suffix == ".toml" else _read(args)
        if args.json:
            print_json(mismatch.to_dict())
        else:
            _print(mismatch)
        return DONE

    return run_command("vf-rl mismatch", run, extra="train")


def _read(args: argparse.Namespace) -> Mismatch:
    if args.set:
        raise ConfigError("--set is for a TOML: what a run's folder holds has been computed")
    check_run_exists(args.run)
    if not (args.run / "traces").is_dir():
        raise ConfigError(f"{args.run} is not the folder of a run: no traces{runs_in(args.run)}")
    wait_for(_load)
    from vf.trainer.watching.mismatch import measure

    return measure(args.run)


def _load() -> None:
    import vf.trainer.watching.mismatch  # noqa: F401


def _sample(path: Path, overrides: Sequence[str]) -> Mismatch:
    from vf.runtime.terminal import make_console
    from vf.trainer.early_checks import check_early
    from vf.trainer.processes.devices import narrow_devices
    from vf.trainer.processes.gpus import count_gpus, split_gpus
    from vf.trainer.settings.load_config import load_config

    raise_limit()
    config, _ = load_config(path, overrides)
    config, _ = split_gpus(config, count_gpus())
    narrow_devices(config)  # before torch is imported
    with working(make_console(stderr=True), "checking the config ...") as say:
        environments = check_early(config)
        wait_for(_load_run)
        from vf.trainer.mismatch_run import measure_config

        return measure_config(config, say, environments)


def _load_run() -> None:
    quiet_transformers()
    import vf.trainer.mismatch_run  # noqa: F401


def _print(mismatch: Mismatch) -> None:
    from rich.table import Table

    from vf.runtime.terminal import make_console
    from vf.trainer.watching.mismatch import HIGH

    console = make_console()
    console.print(_table("log p − log q, in nats", mismatch.gaps))
    if mismatch.rounding:
        console.print(
            _table("log p with these layers in bfloat16 − log p in float32", mismatch.rounding)
        )
    table = Table(title=f"corrections, weights up to {HIGH:g}", title_justify="left")
    table.add_column("importance_sampling_mode")
    for name in ("effective sample size", "clipped"):
        table.add_column(name, justify="right")
    for price in mismatch.prices:
        table.add_row(price.mode, f"{price.effective:.1%}", f"{price.bounded:.2%}")
    console.print(table)
    if mismatch.cause is not None:
        console.print(f"likely cause: {mismatch.cause}")


def _table(title: str, gaps: Sequence[Gap]) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column("of", no_wrap=True)
    for name in ("tokens", "KL", "mean", "99 %", "largest"):
        table.add_column(name, justify="right", no_wrap=True)
    for gap in gaps:
        numbers = [f"{v:.2g}" for v in (gap.kl, gap.mean, gap.p99, gap.largest)]
        name = gap.group if gap.by == "layers" else f"{gap.by} {gap.group}"
        table.add_row(name, f"{gap.tokens:,}", *numbers)
    return table
