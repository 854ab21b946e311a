"""What the tests of task folders share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.bridges.harbor.folders import MakeTask, write_task


@pytest.fixture
def make_task(tmp_path: Path) -> MakeTask:
    """Return a function that writes a task below one folder."""

    def make(name: str = "task", **given: Any) -> Path:
        return write_task(tmp_path / "tasks" / name, **given)

    return make
