"""When a checkpoint is due by the clock, so that a run that is killed loses little.

Importing this module loads no torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable

LOST = 0.1  # of the time so far, which a kill may cost early in a run
SHARE = 0.05  # of the time, which these checkpoints may take


class SaveTimer:
    """Says when a checkpoint is due by the clock.

    The first is due at once. Later ones are due when ``minutes`` have passed since the last, or a
    tenth of the time so far if that is less; but not before twenty times what the last one took.

    Args:
        minutes: At most so long without a checkpoint; 0 is never.
        clock: Returns seconds.
    """

    def __init__(self, minutes: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = 60.0 * minutes
        self._clock = clock
        self._started = clock()
        self._begun: float | None = None  # while one is being written
        self._ended: float | None = None
        self._took = 0.0

    def begin(self) -> None:
        """Note that a checkpoint is being written now, for whatever reason."""
        self._begun = self._clock()

    def end(self) -> None:
        """Note that it is written, or failed. Any thread may call this."""
        begun, self._begun = self._begun, None
        if begun is not None:
            self._ended = self._clock()
            self._took = self._ended - begun

    @property
    def due(self) -> bool:
        """Whether a checkpoint should be written now."""
        if not self._seconds or self._begun is not None:
            return False
        if self._ended is None:
            return True
        now = self._clock()
        wait = min(self._seconds, LOST * (now - self._started))
        return now - self._ended >= max(wait, self._took / SHARE)
