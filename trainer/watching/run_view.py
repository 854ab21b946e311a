"""The live region of a terminal: where a run stands, in a few rows."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from statistics import fmean

from rich.console import Console, ConsoleOptions, RenderResult
from rich.constrain import Constrain
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from vf.evaluation.progress import clock
from vf.runtime.terminal import ACCENT, CAUTION, QUIET, STRONG, figure
from vf.trainer.run.metrics import Metrics

MAX_WIDTH = 110  # columns; a region that is narrower than the terminal survives most resizing
NARROW = 56  # columns below which elapsed and remaining time are left out
PINNED_NOTES = 3  # the newest
TREND_COLUMNS = 24
NAME_COLUMNS, VALUE_COLUMNS = 17, 9  # of a number in the table; 80 columns hold three
NUMBER_ROWS = 3

_BLOCKS = "▁▂▃▄▅▆▇█"
# Metric, its name on the screen and its format; the most important first, as the last ones are
# left out where there is no room.
BRANCHES = "branches_per_rollout"  # shown where they are not one each
_NUMBERS = [
    ("success_rate", "success", "{:.0%}"),
    ("loss", "loss", "{:+.4f}"),
    ("entropy", "entropy", "{:.3f}"),
    ("kl_sample_train_v1", "KL to sampler", "{:.2g}"),
    ("kl_reference_v3", "KL to reference", "{:.2g}"),
    ("grad_norm", "grad norm", "{:.3f}"),
    ("tokens_per_s/generate", "tok/s generated", "{:,.0f}"),
    ("tokens_per_s/train", "tok/s trained", "{:,.0f}"),
    ("kl_teacher_v1", "KL to teacher", "{:.3f}"),
    ("groups/uniform_fraction", "no-signal groups", "{:.0%}"),
    ("tokens/completion_mean", "tokens a rollout", "{:.1f}"),
    ("turns/mean", "turns", "{:.1f}"),
    (BRANCHES, "branches", "{:.3g}"),
    ("truncated_fraction", "truncated", "{:.0%}"),
    ("rollouts/failed", "failed rollouts", "{:,.0f}"),
]


class RunView:
    """What is known of a run, as a rich renderable.

    The trainer's thread sets the attributes and rich's thread renders them, so each change is one
    assignment or one ``append``.

    Attributes:
        waiting: What the run waits for before it starts.
        began: Whether training has started.
        ended: Whether the run is over: only what is worth keeping is shown then.
        max_steps: The step after which the run ends.
        rollouts: How many are done, of how many, and whether they belong to an evaluation.
        notes: All notes; the newest are shown.
    """

    def __init__(self) -> None:
        self.waiting = ""
        self.began = self.ended = False
        self.rollouts = (0, 0, False)
        self.notes: list[str] = []
        self._step = self._first_step = 0
        self.max_steps = 1
        self._started = time.monotonic()
        self._phase = ("start", self._started)
        self._metrics: Metrics = {}
        self._rewards: list[float] = []
        self._held_out: list[tuple[int, float]] = []

    def start(self, step: int, max_steps: int) -> None:
        """Begin training after ``step``."""
        self._step = self._first_step = step
        self.max_steps = max_steps
        self._started = time.monotonic()
        self.enter("start")
        self.began = True

    def enter(self, phase: str) -> None:
        """Begin a phase."""
        self._phase = (phase, time.monotonic())

    def finish(self, metrics: Metrics) -> None:
        """Add a finished step."""
        self._metrics, self._step = metrics, int(metrics["step"])
        self._rewards.append(metrics.get("reward/mean", math.nan))

    def evaluated(self, step: int, reward: float) -> None:
        """Add a held-out evaluation."""
        self._held_out.append((step, reward))

    def now(self) -> str:
        """Return what the run does, in a line."""
        if not self.began:
            waited = time.monotonic() - self._started
            return f"{self.waiting} {waited:.0f} s" if self.waiting else ""
        return ", ".join(filter(None, [f"step {self._step}/{self.max_steps}", *self._activity()]))

    def _activity(self) -> tuple[str, str]:
        """Return the phase with its seconds, and the rollouts that are done in it."""
        phase, since = self._phase
        rollouts, total, evaluating = self.rollouts
        count = f"{rollouts}/{total} {'held-out ' * evaluating}rollouts" if total else ""
        return f"{phase} {time.monotonic() - since:.0f} s", count

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(MAX_WIDTH, options.max_width)
        if not self.began:
            yield _row(self.waiting, width)
            return
        yield Constrain(self._progress(with_times=width >= NARROW), width)
        rows = [*self._reward(), *_columns(_numbers(self._metrics), width)]
        rows += _pack(_times(self._metrics), width, 2)
        if not self.ended:
            rows += [Text(f"! {note}", style=CAUTION) for note in self.notes[-PINNED_NOTES:]]
        yield from (_row(row, width) for row in rows)

    def _progress(self, *, with_times: bool) -> Table:
        spent = time.monotonic() - self._started
        times = f"{clock(spent)} elapsed"
        if (done := self._step - self._first_step) and not self.ended:
            times += f", {clock(spent / done * max(0, self.max_steps - self._step))} left"
        table = Table.grid(
            Column(no_wrap=True),
            Column(ratio=1),
            Column(no_wrap=True, overflow="ellipsis"),
            padding=(0, 1),
            expand=True,
        )
        position = Text(f"step {self._step}/{self.max_steps}", style="bold")
        table.add_row(position, ProgressBar(max(1, self.max_steps), self._step), times * with_times)
        rollouts, total, _ = self.rollouts
        if not self.ended:
            phase, count = self._activity()
            bar = ProgressBar(total, rollouts, complete_style=ACCENT)
            table.add_row(Text(phase), bar if total else "", count)
        return table

    def _reward(self) -> list[Text]:
        cells = []
        if self._rewards:
            reward = (f"reward {self._rewards[-1]:.3f} ", "bold")
            cells.append(Text.assemble(reward, (trend(self._rewards), ACCENT)))
        if self._held_out:
            evaluated = dict([self._held_out[0], self._held_out[-1]])
            values = (f"{reward:.3f} (step {step})" for step, reward in evaluated.items())
            cells.append(Text("held out " + " → ".join(values), style=f"bold {STRONG}"))
        return [Text("   ").join(cells)] if cells else []


def trend(values: Sequence[float], columns: int = TREND_COLUMNS) -> str:
    """Return finite values as a row of blocks, each the mean of neighbours if there are many."""
    values = [value for value in values if math.isfinite(value)]
    size = -(-len(values) // columns) or 1
    means = [fmean(values[start : start + size]) for start in range(0, len(values), size)]
    low, high = min(means, default=0.0), max(means, default=0.0)
    span = (high - low) or 1.0
    return "".join(_BLOCKS[round((len(_BLOCKS) - 1) * (mean - low) / span)] for mean in means)


def _numbers(metrics: Metrics) -> list[tuple[str, str]]:
    """Return the names and values of what a step measured, the most important first."""
    return [
        (name, figure(metrics[metric], form))
        for metric, name, form in _NUMBERS
        if metric in metrics and (metric != BRANCHES or metrics[metric] != 1.0)
    ]


def _times(metrics: Metrics) -> list[Text]:
    """Return the seconds of the last step and each phase's share, the largest first."""
    total = metrics.get("time/total", 0.0)
    phases = {
        name.removeprefix("time/"): seconds / total
        for name, seconds in metrics.items()
        if total > 0 and name.startswith("time/") and name != "time/total" and seconds > 0
    }
    shares = sorted(phases.items(), key=lambda item: -item[1])
    cells = [Text.assemble((f"{name} ", QUIET), f"{share:.0%}") for name, share in shares]
    return [Text.assemble(("last step ", QUIET), f"{total:.1f} s"), *cells] if cells else []


def _columns(numbers: list[tuple[str, str]], width: int) -> list[Text]:
    """Return numbers in columns of fixed width, in at most ``NUMBER_ROWS`` rows.

    So none moves when another changes. What does not fit is left out.
    """
    in_a_row = width // (NAME_COLUMNS + VALUE_COLUMNS)
    if in_a_row < 2:
        return _pack(
            [Text.assemble((f"{name} ", QUIET), value) for name, value in numbers], width, 1
        )
    rows = []
    for begin in range(0, min(len(numbers), NUMBER_ROWS * in_a_row), in_a_row):
        row = Text()
        for name, value in numbers[begin : begin + in_a_row]:
            row.append(f"{name:<{NAME_COLUMNS}}", style=QUIET)
            row.append(f"{value:<{VALUE_COLUMNS}}")
        row.rstrip()
        rows.append(row)
    return rows


def _pack(cells: list[Text], width: int, most: int) -> list[Text]:
    """Return cells side by side in at most ``most`` rows; what does not fit is left out."""
    rows: list[Text] = []
    for cell in cells:
        if rows and rows[-1].cell_len + 3 + cell.cell_len <= width:
            rows[-1] = Text.assemble(rows[-1], "   ", cell)
        elif len(rows) < most:
            rows.append(cell)
    return rows


def _row(text: Text | str, width: int) -> Text:
    """Return text as one row, cut with an ellipsis where it is too wide."""
    row = Text(text) if isinstance(text, str) else text
    row = Text(" ").join(row.split("\n", allow_blank=True))
    row.expand_tabs(1)
    row.truncate(width, overflow="ellipsis")
    row.no_wrap = True
    return row
