"""How many requests a vLLM server is sent at once, by the room that its key-value cache has.

A server takes whatever it is sent and makes what does not fit wait. But requests grow while they
are answered: where they outgrow the cache, vLLM throws one out and computes its context again
later ("preemption"), and the cached prefixes of conversations that are in a tool call go first. So
a server that preempts is sent fewer requests, and more again while there is room: additive
increase, multiplicative decrease, as TCP does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

LEAST = 4
CUT = 0.75  # of the requests under way, where some were preempted
SETTLE = 5  # looks after a cut, in which requests under way end, before the next
ROOMY = 0.9  # share of the cache in use below which one more sixteenth is sent
GROWTH = 16

_USE = re.compile(r"^vllm:kv_cache_usage_perc(?:\{.*\})? (\S+)$", re.MULTILINE)
_PREEMPTIONS = re.compile(r"^vllm:num_preemptions_total(?:\{.*\})? (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Load:
    """What a server says of its key-value cache.

    Attributes:
        use: Share of it that is in use, in [0, 1]; of several copies of the model, the fullest.
        preemptions: Requests thrown out of it since the server started.
    """

    use: float
    preemptions: float

    @classmethod
    def read(cls, metrics: str) -> Load | None:
        """Return what ``/metrics`` says; None if it is of another server than vLLM."""
        use = [float(value) for value in _USE.findall(metrics)]
        if not use:
            return None
        return cls(max(use), sum(float(value) for value in _PREEMPTIONS.findall(metrics)))


class Pace:
    """Follows the load of one server.

    Args:
        most: Requests at once, at most.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._least = min(LEAST, most)
        self._limit = most
        self._preemptions: float | None = None
        self._settling = 0

    def look(self, load: Load, under_way: int) -> int:
        """Return how many requests the server may have at once from now on.

        Args:
            load: The server's present load; read at even intervals.
            under_way: Requests that it has now.
        """
        before, self._preemptions = self._preemptions, load.preemptions
        preempts = before is not None and load.preemptions > before  # a new life counts from 0
        self._settling = max(0, self._settling - 1)
        if preempts and not self._settling:
            self._limit = max(self._least, int(min(self._limit, under_way) * CUT))
            self._settling = SETTLE
        elif not preempts and load.use < ROOMY and under_way >= self._limit:
            self._limit = min(self._most, self._limit + max(1, self._limit // GROWTH))
        return self._limit
