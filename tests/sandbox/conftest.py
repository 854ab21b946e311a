"""What tests of real containers share; ``engine`` is in ``tests/conftest.py``."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.hardening import Profile
from vf.sandbox.container.image import LABEL
from vf.sandbox.contract import Limits


def small_profile() -> Profile:
    """Return a small profile that ends soon by itself, should a test fail to end it."""
    return Profile(
        limits=Limits(memory=192 * 2**20, workspace=32 * 2**20, tmp=16 * 2**20, lifetime=300)
    )


@pytest.fixture
def profile() -> Profile:
    """A small profile."""
    return small_profile()


@pytest.fixture
def scratch(engine: Engine) -> Iterator[Engine]:
    """An engine whose new images are removed after the test.

    Only one test process at a time has it: what another one builds here would be removed as well.
    What other tests make from the default image, such as snapshots, has that one's recipe.
    """
    with (Path(tempfile.gettempdir()) / "vf-test-images.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = {None} | {recipe(item) for item in engine.call_now("images")}
        yield engine
        for item in engine.call_now("images"):
            if recipe(item) not in before or item["RepoTags"] == ["vf-test-empty:2"]:
                engine.call_now("remove_image", item["Id"], force=True)


def recipe(image: dict[str, Any]) -> str | None:
    return (image["Labels"] or {}).get(LABEL)
