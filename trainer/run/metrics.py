"""The numbers of a step, by name, as they are in ``metrics.jsonl``."""

Metrics = dict[str, float]
