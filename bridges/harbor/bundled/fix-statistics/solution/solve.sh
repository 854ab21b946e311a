#!/bin/sh
set -e
cat > /app/stats.py <<'END'
import statistics


def median(values):
    if not values:
        raise ValueError("no values")
    return statistics.median(values)


def mode(values):
    if not values:
        raise ValueError("no values")
    return max(values, key=list(values).count)


def spread(values):
    if len(values) < 2:
        raise ValueError("fewer than two values")
    mean = sum(values) / len(values)
    return sum((v - mean) ** 2 for v in values) / (len(values) - 1)


def moving_mean(values, width):
    if width < 1:
        raise ValueError("width below 1")
    return [sum(values[i : i + width]) / width for i in range(len(values) - width + 1)]
END
