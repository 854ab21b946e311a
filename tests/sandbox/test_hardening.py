"""How a task's spec becomes a container's profile."""

from __future__ import annotations

from pathlib import Path

import pytest

from vf.sandbox.container.hardening import DEFAULT_IMAGE, Profile, profile_for
from vf.sandbox.contract import Limits
from vf.sandbox.spec import Build, SandboxSpec

BASE = Profile(packages=["numpy"], env={"A": "1", "B": "1"}, limits=Limits(pids=99))


def test_a_spec_that_says_nothing_leaves_everything() -> None:
    assert profile_for(SandboxSpec(), BASE) == BASE


def test_what_a_spec_says_comes_before_the_base() -> None:
    spec = SandboxSpec(
        image="task:1",
        writable=True,
        user="root",
        workdir="/app",
        env={"B": "2"},
        limits=Limits(pids=50),
    )
    made = profile_for(spec, BASE)
    assert (made.image, made.packages, made.limits.pids) == ("task:1", (), 50)
    assert (made.writable, made.user, made.workdir) == (True, "root", "/app")
    assert made.env == (("A", "1"), ("B", "2"))
    assert profile_for(SandboxSpec(writable=False), made).writable is False
    assert profile_for(SandboxSpec(), made).image == "task:1"
    assert BASE.image == DEFAULT_IMAGE


def test_what_has_to_be_built_is_not_an_image(tmp_path: Path) -> None:
    for spec in (SandboxSpec(build=Build(tmp_path)), SandboxSpec(compose=tmp_path / "c.yaml")):
        with pytest.raises(ValueError, match="names no image"):
            profile_for(spec, BASE)


def test_a_writable_root_needs_no_memory_for_a_workspace() -> None:
    limits = Limits(memory=128 * 2**20, workspace=100 * 2**20, tmp=16 * 2**20)
    assert Profile(limits=limits, writable=True).writable
    with pytest.raises(ValueError, match=r"workspace \+ tmp"):
        Profile(limits=limits)
    with pytest.raises(ValueError, match="absolute path, got 'app'"):
        Profile(workdir="app")
