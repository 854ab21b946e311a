"""What a run records about itself and shows: metrics, notes, the report, trackers."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING

from vf.trainer.learning.objective import UpdateStats
from vf.trainer.run.display import Display
from vf.trainer.run.group import Group
from vf.trainer.run.metrics import Metrics
from vf.trainer.run.plan import Plan
from vf.trainer.run.run_folder import RunFolder
from vf.trainer.watching.findings import Findings
from vf.trainer.watching.metrics import step_metrics
from vf.trainer.watching.trackers import Tracker, open_trackers

if TYPE_CHECKING:
    from vf.trainer.watching.report import Report

log = logging.getLogger(__name__)


class Records:
    """Measures steps, and tells the log, the display, the trackers and the report about them.

    Args:
        plan: The run.
        folder: The run's folder.
        display: Shows progress.

    Attributes:
        findings: What a user should know about the steps.
    """

    def __init__(self, plan: Plan, folder: RunFolder, display: Display) -> None:
        self._plan = plan
        self._config = plan.config
        self._folder = folder
        self._display = display
        self._tracker: Tracker | None = None
        self._args_of = {member.name: member.args for member in plan.environments}
        self.findings = Findings(plan.config.args, self._args_of)

    @cached_property
    def _report(self) -> Report:
        from vf.trainer.watching.report import Report  # the viewer: not before the first step

        return Report(self._folder, self._plan)

    def open(self, step: int) -> None:
        """Open the trackers, then start the display.

        Args:
            step: Training steps done.

        Raises:
            ConfigError: If a tracker's library is not installed, or it does not start.
        """
        args = self._config.args
        self._tracker = open_trackers(args.report_to, self._folder, self._config, step=step)
        self._display.start(step, args.max_steps)

    def measure(
        self,
        step: int,
        groups: Sequence[Group],
        updates: Sequence[UpdateStats],
        times: Mapping[str, float],
        others: Metrics,
    ) -> Metrics:
        """Return a step's metrics, and note what is remarkable about them.

        Args:
            step: The step's number, from 1.
            groups: The step's groups, by number.
            updates: The step's optimizer steps.
            times: Seconds by part, with ``train`` and ``total``.
            others: Metrics that are known already.
        """
        args = self._config.args
        measured = step_metrics(step, groups, updates, times, args, self._args_of)
        metrics = {"step": step, **measured, **others}
        alarms, findings = self.findings.of_step(step, groups, metrics)
        for finding in findings:
            self.note(finding)
        if (shown := groups[0].traces) and (step - 1) % args.sample_steps == 0:
            self._display.sample(shown[0])
        return metrics | alarms

    def tell(self, step: int, metrics: Metrics) -> None:
        """Show the evaluation after a step, if there was one, and log its metrics to the trackers.

        Args:
            step: Training steps done.
            metrics: All that is known of it.
        """
        if "eval/reward/mean" in metrics:
            self._display.evaluation(step, metrics)
        for finding in self.findings.of_baseline(step, metrics):
            self.note(finding)
        if self._tracker is not None:
            self._tracker.log(metrics)

    def note(self, text: str) -> None:
        """Tell the user something that they should be able to find again after the run."""
        log.warning("%s", text)
        self._display.note(text)

    def update_report(self, *, final: bool) -> None:
        """Write the report, unless it has just been written and this is not the final one."""
        self._report.update(final=final)

    def close(self, *, failed: bool) -> None:
        """Stop the display, then close the trackers. Safe to call twice.

        Args:
            failed: Whether the run ends because something went wrong; the report then says so.
        """
        with ExitStack() as stack:  # whatever fails, the rest is closed
            if failed:
                stack.callback(self._report.update, final=True)
            if self._tracker is not None:
                stack.callback(self._tracker.close, failed=failed)
                self._tracker = None
            stack.callback(self._display.stop)
