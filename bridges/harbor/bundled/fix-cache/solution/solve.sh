#!/bin/sh
set -e
cat > /app/cache.py <<'END'
import time


class Cache:
    def __init__(self, size, age=None, clock=time.monotonic):
        if size < 1:
            raise ValueError("size below 1")
        self.size, self.age, self.clock = size, age, clock
        self.values = {}

    def _passed(self, since):
        return self.age is not None and self.clock() - since >= self.age

    def _find(self, key):
        if key not in self.values or self._passed(self.values[key][1]):
            return None
        self.values[key] = self.values.pop(key)
        return self.values[key]

    def get(self, key, default=None):
        found = self._find(key)
        return default if found is None else found[0]

    def set(self, key, value):
        self.values.pop(key, None)
        if len(self.values) >= self.size:
            passed = (k for k, (_, since) in self.values.items() if self._passed(since))
            del self.values[next(passed, next(iter(self.values)))]
        self.values[key] = (value, self.clock())

    def __len__(self):
        return sum(not self._passed(since) for _, since in self.values.values())

    def compute(self, key, function):
        found = self._find(key)
        if found is not None:
            return found[0]
        value = function()
        self.set(key, value)
        return value
END
