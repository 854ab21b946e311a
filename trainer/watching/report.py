"""`report.html`: the page of a run as one file, written while it runs.

It opens offline. Its data is compressed, its policy lets only its own script run, and every text of
a sampled trace is escaped.
"""

from __future__ import annotations

import logging
import time

from vf.runtime.errors import ConfigError
from vf.trainer.run.plan import Plan
from vf.trainer.run.run_folder import RunFolder
from vf.trainer.watching.conversations import choose, escape, render
from vf.trainer.watching.page_details import about_run
from vf.trainer.watching.plan_text import describe
from vf.viewer.page import offline_page, write_offline
from vf.viewer.runs import About
from vf.viewer.watch import Watch

log = logging.getLogger(__name__)

SECONDS = 5.0  # between two writings, at least
SHARE = 0.02  # of a run's time that writing may take at most


class Report:
    """Writes a run's report while it runs, seldom enough to cost next to nothing.

    Args:
        folder: The run's.
        plan: The run.
    """

    def __init__(self, folder: RunFolder, plan: Plan) -> None:
        self._folder, self._plan = folder, plan
        self._watch = Watch([folder.path], _about(plan))  # reads of each file what is new
        self._next = 0.0
        self._warned = False

    def update(self, *, final: bool = False) -> bool:
        """Write the report, if it is time to; returns whether it did.

        Args:
            final: Write it in any case: the run ends, well or badly.
        """
        started = time.monotonic()
        if not final and started < self._next:
            return False
        try:
            write_report(self._folder, self._plan, self._watch)
        except (OSError, ConfigError) as error:  # a full disk is no reason to stop training
            if not self._warned:
                log.warning("the report cannot be written: %s; the run continues", error)
            self._warned = True
            return False
        finally:
            ended = time.monotonic()
            self._next = ended + max(SECONDS, (ended - started) / SHARE)
        return True


def write_report(folder: RunFolder, plan: Plan, watch: Watch | None = None) -> None:
    """Write the report of what the run's folder holds by now, whole or not at all.

    Args:
        folder: The run's.
        plan: The run.
        watch: Follows the run; without it, everything but the evaluations is read again.

    Raises:
        OSError: If the disk is full, or the folder cannot be written to.
    """
    watch = watch or Watch([folder.path], _about(plan), evaluates=False)
    watch.scan()
    page = offline_page(watch.everything(), folder.path.name, samples=_samples(folder))
    write_offline(page, folder.report)


def _about(plan: Plan) -> About:
    plan_text = describe(plan)
    return lambda _, lines: {**about_run(plan.config, lines), "plan": plan_text}


def _samples(folder: RunFolder) -> str:
    """Return a few conversations of the newest step and of the last evaluation, as HTML."""
    lines = folder.read_metrics()
    steps = [line["step"] for line in lines if line.get("reward/mean") is not None]
    held_out = [line["step"] for line in lines if line.get("eval/reward/mean") is not None]
    groups = []
    if steps:
        done = int(steps[-1])
        groups.append((f"Of step {done}", choose(folder.step_traces(done).path)))
    if held_out:
        after = int(held_out[-1])
        groups.append((f"Held out, after step {after}", choose(folder.eval_traces(after).path)))
    body = "".join(
        f'<h2 class="group">{escape(title)}</h2>{render(chosen)}'
        for title, chosen in groups
        if chosen
    )
    command = escape(f"vf-rl view {folder.path}")
    caption = f'<p class="faint">A sample. All traces, token by token: <code>{command}</code></p>'
    return caption + body if body else ""
