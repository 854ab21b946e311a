"""The numbers of a step, by name, as they are in ``metrics.jsonl``."""

from __future__ import annotations

from collections.abc import Mapping

Metrics = dict[str, float]


def by_environment(metrics: Mapping[str, Metrics], count: int | None = None) -> Metrics:
    """Return the metrics of each environment as ``env/NAME/...``; none where there is only one.

    Args:
        metrics: Metrics by the environment's name.
        count: The number of environments in the run, if that differs.
    """
    if (len(metrics) if count is None else count) == 1:
        return {}
    return {
        f"env/{name}/{key}": value for name, own in metrics.items() for key, value in own.items()
    }
