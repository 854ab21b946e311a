"""`vf-rl` as a user meets it."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest

from tests.trainer.conftest import VfRl
from vf.inference.embedded.embedded_server import EmbeddedServer
from vf.inference.rendering.renderer import Renderer
from vf.runtime.errors import EngineError
from vf.trainer.settings.load_config import load_config


def test_a_port_in_use_is_reported_in_one_line(config: Path, vf_rl: VfRl) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, _, err = vf_rl(config, "--dry-run", "--set", f"inference.port={port}")
    [said] = err.splitlines()
    assert code == 2
    assert f"cannot listen on port {port} of" in said


@pytest.mark.slow
def test_a_dry_run_that_fails_says_so_in_one_line(
    config: Path, vf_rl: VfRl, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: EmbeddedServer, say: object) -> None:
        raise EngineError("no memory left")

    monkeypatch.setattr(EmbeddedServer, "start", refuse)
    code, _, err = vf_rl(config, "--dry-run")
    assert (code, err) == (1, "vf-rl: no memory left\n")


def test_dry_run_starts_everything_and_leaves_nothing(config: Path, vf_rl: VfRl) -> None:
    code, said, _ = vf_rl(config, "--dry-run")
    assert code == 0
    for word in ("model", "engine", "environment", "memory", "everything starts"):
        assert word in said
    assert not (config.parent / "runs").exists()


@pytest.mark.slow
def test_a_budget_is_found_and_the_run_has_the_number(config: Path, vf_rl: VfRl) -> None:
    settings = ["--set", "run_name=found", "--set", "micro_batch_tokens=auto"]
    code, out, _ = vf_rl(config, *settings)
    assert code == 0
    said = re.search(r"micro-batch +([\d,]+) tokens, found for 80%", out)
    assert said is not None
    kept, _ = load_config(config.parent / "runs" / "found" / "config.toml")
    assert kept.args.micro_batch_tokens == int(said[1].replace(",", ""))


@pytest.mark.slow
def test_a_run_leaves_what_it_promises_and_can_be_resumed(config: Path, vf_rl: VfRl) -> None:
    code, said, _ = vf_rl(config, "--set", "run_name=first")
    assert code == 0
    run = config.parent / "runs" / "first"
    assert re.search(r"0\.\d{3} → 0\.\d{3} in \d+ s  held-out reward, 2 steps", said)
    for row in (
        f"report  {run / 'report.html'}",
        f"traces  vf-rl view {run}",
        f"export  vf-rl export {run}",
        f"continue  vf-rl --resume {run} --set max_steps=4",
    ):
        assert row in said
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2]
    assert "eval/reward/mean" in lines[0]
    assert "eval/reward/mean" in lines[2]
    assert {"reward/mean", "reward/std", "tokens_per_s/generate"} <= lines[1].keys()
    for name in ("config.toml", "report.html", "logs/trainer.log", "logs/inference.log"):
        assert (run / name).is_file()
    assert "uPlot" in (run / "report.html").read_text()
    assert f"vf-rl view {run}" in said.replace("\n", "")
    assert (run / "checkpoints/step-2/model/adapter_model.safetensors").is_file()
    assert Renderer.from_pretrained(str(run / "checkpoints/step-2/model")).stop_token_ids
    assert len((run / "traces/step-000001.jsonl").read_text().splitlines()) == 8

    code, _, err = vf_rl(config, "--set", "run_name=first")
    assert code == 2
    assert "never overwritten" in err

    assert vf_rl("--resume", run, "--set", "max_steps=3")[0] == 0
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
