"""A cache that forgets."""

import time


class Cache:
    """Keeps at most ``size`` values, each for at most ``age`` seconds after it was set.

    When it is full, a new key takes the place of one whose age has passed, if there is one, else of
    the one that was used least recently. A value is used when it is set and when ``get`` returns it.

    Args:
        size: At least 1, else ValueError.
        age: In seconds; None for no limit. A value that is exactly that old has passed it.
        clock: Returns the time in seconds.
    """

    def __init__(self, size, age=None, clock=time.monotonic):
        self.size = size
        self.age = age
        self.clock = clock
        self.values = {}

    def get(self, key, default=None):
        """Return the value of a key, the default if there is none or its age has passed."""
        if key not in self.values:
            return default
        value, since = self.values[key]
        if self.age and self.clock() - since > self.age:
            return default
        self.values[key] = (value, self.clock())
        return value or default

    def set(self, key, value):
        """Keep a value, with a new age."""
        if len(self.values) >= self.size:
            oldest = next(iter(self.values))
            del self.values[oldest]
        self.values[key] = (value, self.clock())

    def __len__(self):
        """Return how many values there are whose age has not passed."""
        return len(self.values)

    def compute(self, key, function):
        """Return the value of a key; if there is none, call the function once and keep its result.

        None is a value as any other. If the function raises, nothing is kept.
        """
        value = self.get(key)
        if value is None:
            self.set(key, function())
        return self.get(key)
