"""The numbers of a step, by name, as they are in ``metrics.jsonl``."""

from __future__ import annotations

from collections.abc import Mapping

Metrics = dict[str, float]


def by_environment(found: Mapping[str, Metrics], count: int | None = None) -> Metrics:
    """Return the metrics of each environment as ``env/NAME/...``; none where there is only one.

    Args:
        found: Metrics by the environment's name.
        count: How many the run has, if that is not as many.
    """
    if (len(found) if count is None else count) == 1:
        return {}
    return {
        f"env/{name}/{key}": value for name, each in found.items() for key, value in each.items()
    }
