"""The numbers of a step, by name, as they stand in ``metrics.jsonl``."""

Metrics = dict[str, float]
