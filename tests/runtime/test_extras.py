"""Optional packages, and which versions of them will do."""

from __future__ import annotations

import pytest

import vf
from vf.runtime.extras import check_version, load


def test_a_missing_package_names_its_extra() -> None:
    words = r"needs the package 'no.such.thing'.*vf-rl\[some\]"
    with pytest.raises(vf.ConfigError, match=words):
        load("no_such_thing.core", "some")
    with pytest.raises(vf.ConfigError, match=words):
        check("no-such-thing")


def check(package: str) -> tuple[int, ...]:
    return check_version(package, "some", "1.24", "3")


@pytest.mark.parametrize("found", ["1.24", "1.24.0", "1.100.3", "2.0.0rc1", "2.99"])
def test_what_lies_between_is_taken(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vf.runtime.extras.version", lambda package: found)
    assert check("pytest")[:2] == tuple(map(int, found.split(".")[:2]))


@pytest.mark.parametrize("found", ["1.23.9", "0.99", "3", "3.0.1"])
def test_what_does_not_is_refused(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vf.runtime.extras.version", lambda package: found)
    with pytest.raises(vf.ConfigError, match=r"1\.24 and later, before 3, are: pip install"):
        check("pytest")
