"""One line of the report: what was checked, whether it holds, and the figures."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Figure = float | int | str


@dataclass(frozen=True)
class Row:
    """The result of one check.

    Attributes:
        check: What was checked.
        passed: Whether it holds; None where there is nothing to compare with, and where it cannot
            run on this machine.
        figures: What was measured, with units in the names.
        note: Why it failed, or could not run.
    """

    check: str
    passed: bool | None
    figures: Mapping[str, Figure] = field(default_factory=dict)
    note: str = ""

    def line(self) -> str:
        """Return the row as progress, on one line."""
        verdict = {True: "ok", False: "FAILED", None: "--"}[self.passed]
        return f"{verdict:<7} {self.check:<34} {self.shown()}".rstrip()

    def shown(self) -> str:
        """Return figures and note, on one line."""
        figures = ", ".join(f"{name} {_short(value)}" for name, value in self.figures.items())
        return "; ".join(filter(None, [figures, self.note]))


def run(name: str, check: Callable[[], Row]) -> Row:
    """Run a check; what it raises fails it, and no other."""
    import torch

    gc.collect()  # the models of the check before
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    try:
        return check()
    except Exception as error:  # whatever it is, the other checks still say something
        traceback.print_exc()
        said = str(error).strip().splitlines()
        return Row(name, False, note=f"{type(error).__name__}: {said[0] if said else ''}"[:200])


def _short(value: Figure) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else value
