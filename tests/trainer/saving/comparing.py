"""What two runs that were the same have in common."""

from __future__ import annotations

from vf.trainer.run.run_folder import RunFolder

CLOCK = ("time/", "tokens_per_s/", "groups_per_s/")


def comparable(folder: RunFolder) -> list[dict[str, float]]:
    """Return a run's metrics, line by line, but for those of the clock."""
    return [
        {name: value for name, value in line.items() if not name.startswith(CLOCK)}
        for line in folder.read_metrics()
    ]
