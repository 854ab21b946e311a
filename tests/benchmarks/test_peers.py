"""A benchmark runs without a peer that is not installed, and says how to install it."""

from __future__ import annotations

import pytest
from harness import MISSING
from peers import present, versions_of

NEEDS = {"theirs": "no_such_peer", "also theirs": "no_such_peer", "known": "json"}


def test_a_missing_peer_is_named_with_its_line_and_the_others_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VF_REQUIRE_ALL", raising=False)
    found = present(["theirs", "also theirs", "known", "ours"], NEEDS, "'vf-rl[{}]'")
    assert found == ["known", "ours"]
    assert capsys.readouterr().err == (
        "no_such_peer is not installed, so this runs without theirs, also theirs; for it: "
        "pip install 'vf-rl[no_such_peer]'\n"
    )


def test_where_all_is_required_a_missing_peer_ends_the_benchmark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VF_REQUIRE_ALL", "1")
    with pytest.raises(SystemExit) as ended:
        present(["theirs", "ours"], NEEDS, "{}")
    assert ended.value.code == MISSING
    assert present(["known", "ours"], NEEDS, "{}") == ["known", "ours"]


def test_what_is_not_installed_has_no_version() -> None:
    found = versions_of("pytest", "no-such-peer")
    assert found["no-such-peer"] is None
    assert found["pytest"] == pytest.__version__
