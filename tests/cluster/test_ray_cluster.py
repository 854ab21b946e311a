"""What is checked before a run uses a Ray cluster, as far as that needs no cluster."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from vf.cluster.ray_cluster import check_address, compare
from vf.cluster.ray_node import Report, code_hash, report
from vf.runtime.errors import ConfigError

OWN = Report("10.0.0.1", {"Python": "3.11.7", "ray": "2.60.0"}, "abc")
OTHER = replace(OWN, host="10.0.0.2")


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_machines_that_are_alike_are_fine() -> None:
    compare(OWN, [(OTHER, 0.0), (OTHER, 4.0)])


@pytest.mark.parametrize(
    ("other", "ahead", "said"),
    [
        (
            replace(OTHER, versions={"Python": "3.12.1", "ray": "2.60.0"}),
            0.0,
            "10.0.0.2 has Python 3.12.1, and 10.0.0.1 3.11.7",
        ),
        (
            replace(OTHER, versions={"Python": "3.11.7", "ray": "2.53.0"}),
            0.0,
            "10.0.0.2 has ray 2.53.0, and 10.0.0.1 2.60.0",
        ),
        (
            replace(OTHER, versions={**OWN.versions, "torch": "2.13.0"}),
            0.0,
            "10.0.0.2 has torch 2.13.0, and 10.0.0.1 none",
        ),
        (replace(OTHER, code="def"), 0.0, "10.0.0.2 has other files of vf-rl than 10.0.0.1"),
        (OTHER, 61.0, "the clock of 10.0.0.2 is 61 s ahead of 10.0.0.1's"),
        (OTHER, -7.0, "the clock of 10.0.0.2 is 7 s behind 10.0.0.1's"),
        (replace(OTHER, missing=["/runs"]), 0.0, "10.0.0.2 does not see /runs"),
    ],
)
def test_a_machine_that_differs_is_named_and_how(other: Report, ahead: float, said: str) -> None:
    with pytest.raises(ConfigError, match="do not fit together") as caught:
        compare(OWN, [(OWN, 0.0), (other, ahead)])
    assert said in str(caught.value)


def test_every_machine_that_differs_is_named() -> None:
    old = replace(OTHER, versions={**OWN.versions, "ray": "2.53.0"})
    with pytest.raises(ConfigError) as caught:
        compare(OWN, [(replace(OTHER, host="10.0.0.3"), 60.0), (old, 0.0)])
    assert "10.0.0.3" in str(caught.value)
    assert "10.0.0.2" in str(caught.value)


def test_a_report_names_the_folders_that_a_machine_does_not_see(tmp_path: Path) -> None:
    (tmp_path / "mark").touch()
    marks = {"/here": str(tmp_path / "mark"), "/there": str(tmp_path / "none")}
    found = report(marks, "10.0.0.1")
    assert found.missing == ["/there"]
    assert found.code == code_hash()
    assert found.versions["Python"].startswith("3.")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("10.0.0.1", 'it must be "auto", "HOST:PORT"'),
        ("10.0.0.1:", "it must be"),
        ("ray://head:10001", "interactive client"),
        ("no-such-host.invalid:6379", "cannot be reached from here"),
    ],
)
def test_a_wrong_address_is_refused(address: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        check_address(address)
    assert f"cluster.address = {address!r}" in str(caught.value)
    assert "http://HEAD:8265" in str(caught.value)


def test_a_wrong_address_of_rays_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "no-such-host.invalid:6379")
    said = r"RAY_ADDRESS = 'no-such-host.invalid:6379', which cluster.address = 'auto' takes, can"
    with pytest.raises(ConfigError, match=said):
        check_address("auto")


def test_an_address_where_nothing_listens_is_refused_at_once(listening: int) -> None:
    check_address(f"127.0.0.1:{listening}")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(ConfigError, match="Connection refused"):
            check_address(f"127.0.0.1:{taken.getsockname()[1]}")
