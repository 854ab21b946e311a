"""What tests of real containers share; ``engine`` is in ``tests/conftest.py``."""

from __future__ import annotations

import pytest

from vf.sandbox.container.profile import Profile
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
