"""A check that fails says why, stops no other, and makes the exit code 1."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from gpu_check import __main__ as gpu_check
from gpu_check.row import Row


@pytest.mark.slow
def test_a_failing_check_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> Row:
        raise RuntimeError("no kernel\nat all")

    todo = {"one": broken, "two": lambda: Row("two", True, {"s": 0.25}), "other": broken}
    monkeypatch.setattr(gpu_check, "checks", lambda: todo)
    page = tmp_path / "page.md"
    monkeypatch.setattr("sys.argv", ["gpu_check", "--only", "o", "--markdown", str(page)])
    assert gpu_check.main() == 1
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [(row["check"], row["passed"]) for row in last["rows"]] == [
        ("one", False),
        ("two", True),
        ("other", False),
    ]
    assert last["rows"][0]["note"] == "RuntimeError: no kernel"
    assert "| two | yes | s 0.25 |" in page.read_text()
    monkeypatch.setattr("sys.argv", ["gpu_check", "--only", "two"])
    assert gpu_check.main() == 0
