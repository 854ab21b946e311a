"""Small environments of verifiers, on ``sys.path`` as if their packages were installed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "their_envs"


@pytest.fixture
def their_envs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Put them on the path, also on that of processes which verifiers starts."""
    monkeypatch.syspath_prepend(FOLDER)
    inherited = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(FOLDER), inherited])))
    yield FOLDER
    for name in [each for each in sys.modules if each.startswith("their_")]:
        del sys.modules[name]
