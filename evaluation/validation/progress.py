"""Progress of a validation: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from vf.evaluation.validation.findings import Stage
from vf.runtime.heartbeat import Heartbeat

if TYPE_CHECKING:
    from rich.console import Console


@contextmanager
def showing(console: Console) -> Iterator[Callable[[Stage], None]]:
    """Show how far a validation is, and which agents are acting.

    Args:
        console: The console to print on; stderr usually, so that stdout holds the report alone.

    Yields:
        A function to call with each stage, as ``validate`` does.
    """
    if console.is_terminal:
        with _bar(console) as show:
            yield show
    else:
        with _lines(console) as show:
            yield show


@contextmanager
def _bar(console: Console) -> Iterator[Callable[[Stage], None]]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    names = TextColumn(
        "{task.fields[running]}", markup=False, table_column=Column(no_wrap=True, ratio=1)
    )
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        names,
    )
    with Progress(*columns, console=console, transient=True, expand=True) as progress:
        task = progress.add_task("starting", total=None, running="")

        def show(stage: Stage) -> None:
            progress.update(
                task,
                description=stage.name,
                completed=stage.done,
                total=stage.total,
                running=", ".join(stage.running),
            )

        yield show


@contextmanager
def _lines(console: Console) -> Iterator[Callable[[Stage], None]]:
    now: Stage | None = None

    def show(stage: Stage) -> None:
        nonlocal now
        now = stage

    def line() -> str:
        if now is None:
            return "validation starts ..."
        return f"{now.name}: {now.done}/{now.total} rollouts  {', '.join(now.running)}"

    heartbeat = Heartbeat(lambda text: console.print(text, soft_wrap=True), line)
    heartbeat.start()
    try:
        yield show
    finally:
        heartbeat.stop()
