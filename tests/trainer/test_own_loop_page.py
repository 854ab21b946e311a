"""The loop of docs/own-loop.md, straight from the page."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import ROOT, Block, blocks

PAGE = ROOT / "docs" / "own-loop.md"
LOOP, OWN = [block for block in blocks(PAGE) if block.kind == "python"]


def run(block: Block, scope: dict[str, Any], *changes: tuple[str, str]) -> None:
    text = block.text
    for before, after in changes:
        assert text.count(before) == 1
        text = text.replace(before, after)
    exec(compile("\n" * (block.line - 1) + text, str(PAGE), "exec"), scope)


def test_the_loop_is_short() -> None:
    assert len([line for line in LOOP.text.splitlines() if line.strip()]) <= 30


@pytest.mark.slow
def test_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {"__name__": "__main__"}
    run(LOOP, scope, ("STEPS = 20", "STEPS = 2"), ("[:200]", "[:8]"))
    run(OWN, scope)
    said = capsys.readouterr().out.splitlines()
    assert [line[0] for line in said[:2]] == ["0", "1"]
    assert said[2].startswith("held out: 0.")
    assert said[3] == "2 steps were taken"
    assert (tmp_path / "checkpoint" / "model").is_dir()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_loop_gives_the_curve_of_the_quickstart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {"__name__": "docs"}
    run(LOOP, scope)
    before, after = asyncio.run(scope["main"]())
    assert 0.35 < before < 0.55
    assert after > 0.85
