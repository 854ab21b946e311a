"""A thread that notices when nothing makes progress, and records what waits for what."""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from vf.environments.episode import Activity

log = logging.getLogger(__name__)

LISTED = 8  # rollouts in a message; the file has them all


class Watchdog:
    """Reports stalls. It ends nothing: whatever waits has a deadline of its own.

    Args:
        timeout: Seconds without a :meth:`beat` that count as a stall.
        look: Returns the activities of all rollouts.
        tell: Called with a report when a stall begins, and again after each further ``timeout``.
        path: The file to which every rollout and the stack of every thread are appended.
    """

    def __init__(
        self,
        timeout: float,
        look: Callable[[], Sequence[Activity]],
        tell: Callable[[str], None],
        path: Path,
    ) -> None:
        self._timeout = timeout
        self._look = look
        self._tell = tell
        self._path = path
        self._phase = "starting"
        self._beaten = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vf-watchdog", daemon=True)
        self._thread.start()

    def beat(self) -> None:
        """Record progress. Any thread may call it."""
        self._beaten = time.monotonic()

    def phase(self, name: str) -> None:
        """Record which phase the trainer begins."""
        self._phase = name
        self.beat()

    def stop(self) -> None:
        """End the thread. Safe to call twice."""
        self._ended.set()
        self._thread.join(timeout=10.0)

    def _run(self) -> None:
        beaten, deadline = self._beaten, self._timeout
        while not self._ended.wait(min(1.0, self._timeout / 4)):
            if self._beaten != beaten:
                beaten, deadline = self._beaten, self._timeout
            still = time.monotonic() - beaten
            if still > deadline:
                deadline += self._timeout
                try:
                    self._report(still)
                except Exception:
                    log.exception("while recording a stall")

    def _report(self, still: float) -> None:
        activities = self._look()
        with self._path.open("a") as file:
            file.write(f"{datetime.now().isoformat(timespec='seconds')}  ")
            file.write(describe(self._phase, still, activities, len(activities)) + "\n")
            file.write(stacks() + "\n")
        text = describe(self._phase, still, activities, LISTED)
        text += f"\nThe stack of every thread is in {self._path}."
        log.warning("%s", text)
        self._tell(text)


def stacks() -> str:
    """Return the stacks of all Python threads, the main thread first and equal stacks once."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    alike: dict[str, list[str]] = {}
    main = threading.main_thread().ident
    for ident, frame in sorted(sys._current_frames().items(), key=lambda item: item[0] != main):
        stack = "".join(traceback.format_stack(frame))
        alike.setdefault(stack, []).append(names.get(ident, str(ident)))
    return "\n".join(f"{', '.join(threads)}:\n{stack}" for stack, threads in alike.items())


def describe(phase: str, still: float, activities: Sequence[Activity], most: int) -> str:
    """Return what the trainer and its rollouts wait for.

    Args:
        phase: The trainer's current activity.
        still: Seconds without progress.
        activities: The rollouts' current activities.
        most: The number of these that are listed, those that wait longest first.
    """
    counts = Counter(activity.doing for activity in activities)
    lines = [
        f"no progress for {still:.0f} s. The trainer is in {phase!r}; rollouts under way: "
        + (", ".join(f"{n} in {doing!r}" for doing, n in counts.most_common()) or "none")
    ]
    now = time.monotonic()
    for activity in sorted(activities, key=lambda activity: activity.since)[:most]:
        lines.append(
            f"  task {activity.task.id}, turn {activity.turn + 1}: {now - activity.since:.0f} s "
            f"in {activity.doing!r}"
        )
    return "\n".join(lines)
