"""What the tests of several files need: environments of verifiers', an OpenEnv server."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "their_envs"


@pytest.fixture
def their_envs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Put small environments of verifiers on the path, as if their packages were installed.

    Processes which verifiers starts have them too.
    """
    monkeypatch.syspath_prepend(FOLDER)
    inherited = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(FOLDER), inherited])))
    yield FOLDER
    for name in [each for each in sys.modules if each.startswith("their_")]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def guess() -> Iterator[str]:
    """Serve a game of numbers with OpenEnv."""
    from tests.bridges.openenv import openenv_servers as servers

    with servers.served(servers.guess_app()) as url:
        yield url
