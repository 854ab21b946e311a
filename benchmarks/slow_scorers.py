"""Scorers that compute with the interpreter's lock held, for `benchmarks/rubrics.py`.

In a module of their own, for a worker process imports what it runs.
"""

from __future__ import annotations

import re

import vf

_TEXT = "a" * 22 + "!"  # the pattern takes some 2^22 steps to see that it does not match


def backtrack(trace: vf.Trace) -> float:
    """Compute in a thread: nothing else in the process can run meanwhile."""
    return float(re.match(r"(a+)+$", _TEXT) is None)


@vf.cpu_bound
def backtrack_elsewhere(trace: vf.Trace) -> float:
    """The same, in a process of its own."""
    return backtrack(trace)
