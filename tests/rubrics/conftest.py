"""What tests of rewards share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `math_equal` compute here: starting over in other processes takes most of the time."""

    async def run(fn: Callable[..., Any], *args: Any, timeout: float) -> Any:
        return fn(*args)

    monkeypatch.setattr("vf.rubrics.outcomes.expressions.run_bounded", run)
