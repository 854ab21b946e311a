"""`vf-rl mismatch`: where sampler and trainer differ, and what each correction would cost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vf.runtime.command import DONE, CommandParser, run_command

if TYPE_CHECKING:
    from vf.trainer.watching.mismatch import Mismatch

EPILOG = """\
examples:
  vf-rl mismatch runs/quickstart-1
  vf-rl mismatch runs/quickstart-1 --json

Reads the groups that the run kept (trainer.args.learned_groups). Nothing is computed again.
Exit codes: 0 done, 1 failed, 2 bad usage, or a run that kept nothing.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = CommandParser(
        prog="vf-rl mismatch",
        description="Show by how much sampler and trainer differ, and on which tokens; price the "
        "corrections.",
        epilog=EPILOG,
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)

    def run() -> int:
        from vf.trainer.watching.mismatch import measure

        found = measure(args.run)
        if args.json:
            print(json.dumps(found.to_dict(), indent=2))
        else:
            _print(found)
        return DONE

    return run_command("vf-rl mismatch", run, extra="train")


def _print(found: Mismatch) -> None:
    from rich.table import Table

    from vf.runtime.terminal import make_console
    from vf.trainer.watching.mismatch import HIGH

    console = make_console()
    table = Table(title="log p − log q, in nats", title_justify="left")
    table.add_column("of", no_wrap=True)
    for name in ("tokens", "KL", "mean size", "99 %", "largest"):
        table.add_column(name, justify="right")
    for each in found.gaps:
        numbers = [f"{v:.2g}" for v in (each.kl, each.mean, each.p99, each.largest)]
        table.add_row(f"{each.by} {each.group}", f"{each.tokens:,}", *numbers)
    console.print(table)
    table = Table(title=f"corrections, weights up to {HIGH:g}", title_justify="left")
    table.add_column("importance_sampling_mode")
    for name in ("effective sample size", "clipped"):
        table.add_column(name, justify="right")
    for price in found.prices:
        table.add_row(price.mode, f"{price.effective:.1%}", f"{price.bounded:.2%}")
    console.print(table)
