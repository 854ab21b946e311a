"""`vf.train`: a run from Python."""

from __future__ import annotations

from pathlib import Path

import pytest

import vf
from vf.trainer.processes.launch import OUTER_DEVICES


@pytest.mark.slow
@pytest.mark.gate
async def test_a_run_from_a_notebook_returns_its_summary(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = vf.train(str(config), ["max_steps=1"], quiet=True)
    run = config.parent / "runs" / "mine-1"
    assert capsys.readouterr().out == ""
    assert getattr(summary, "steps", None) == 1
    assert getattr(summary, "eval_after", None) is not None
    assert getattr(summary, "checkpoint", None) == run / "checkpoints" / "step-1"
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 2
    assert "max_steps = 1" in (run / "config.toml").read_text()


def test_what_is_wrong_is_raised_before_anything_is_made(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OUTER_DEVICES, "")  # devices are narrowed already
    with pytest.raises(vf.ConfigError, match="needs 2 processes: start it with `vf-rl"):
        vf.train(config, ["trainer.gpus=2"])
    assert not (config.parent / "runs").exists()
