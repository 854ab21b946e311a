"""What a command prints for other programs: JSON, and nothing else on standard output."""

from __future__ import annotations

import ctypes
import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any

OUT, ERROR = 1, 2  # the file descriptors of standard output and standard error


@contextmanager
def own_stdout(enabled: bool) -> Iterator[None]:
    """Send to standard error what is printed in the block, by whichever code, if enabled.

    An author's ``print``, a library in C and the processes that they start, also those that outlive
    the block, all share standard output with the result that is printed after it.
    """
    if not enabled:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(OUT)
    os.dup2(ERROR, OUT)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        with suppress(OSError, AttributeError, TypeError):
            ctypes.CDLL(None).fflush(None)  # what C has printed, and kept in its buffer
        os.dup2(kept, OUT)
        os.close(kept)


def print_json(result: Any) -> None:
    """Print a result as JSON that any program reads."""
    print(json.dumps(finite(result), indent=2, ensure_ascii=False, allow_nan=False))


def finite(value: Any) -> Any:
    """Return nested values as JSON has them, which knows no NaN and no infinity: None instead."""
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
