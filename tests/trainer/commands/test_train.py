"""`vf-rl` as a user meets it."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest

from vf.inference.embedded.embedded_server import EmbeddedServer
from vf.inference.model_files import resolve_model
from vf.inference.rendering.renderer import Renderer
from vf.runtime.errors import EngineError
from vf.trainer.commands.main import main
from vf.trainer.settings.load_config import load_config


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["env.id=calculater"], "Did you mean 'calculator'"),
        (["env.args.max_operations=many"], "environment 'calculator' cannot be made with env.args"),
        (["trainer=5"], "trainer = 5: must be a table, [trainer]"),
        (["model=./no/such/folder"], "model = './no/such/folder': there is no such folder"),
        (["max_stepz=3"], "trainer.args.max_stepz: unknown key. Did you mean 'max_steps'"),
        (["max_seq_len=4096", "micro_batch_tokens=8192"], "more than the model's context of 1024"),
    ],
)
def test_bad_input_exits_with_2_before_anything_is_made(
    config: Path, capsys: pytest.CaptureFixture[str], overrides: list[str], said: str
) -> None:
    args = [part for override in overrides for part in ("--set", override)]
    assert main([str(config), *args]) == 2
    assert said in capsys.readouterr().err
    assert not (config.parent / "runs").exists()


def test_a_folder_in_the_wrong_place_is_named(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "all" / "one"
    run.mkdir(parents=True)
    (run / "config.toml").write_bytes(config.read_bytes())
    for argv, said in (
        ([run], f"{run} is a folder: name a TOML file; to continue the run in it, write --resume"),
        ([run.parent], f"{run.parent} is a folder: name a TOML file\n"),
        (["--resume", run.parent], "not the folder of a run; it holds the runs one: name one"),
        (["--resume", tmp_path / "no"], f"there is no folder {tmp_path / 'no'}"),
    ):
        assert main([*map(str, argv)]) == 2
        assert said in capsys.readouterr().err


def test_a_model_without_a_chat_template_is_refused(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "bare"
    copy.mkdir()
    for file in Path(resolve_model("tiny")).iterdir():
        if file.suffix not in (".jinja", ".safetensors"):
            (copy / file.name).write_bytes(file.read_bytes())
    assert main([str(config), "--set", f"model={copy}"]) == 2
    assert "no chat template" in capsys.readouterr().err


def test_a_port_in_use_is_reported_in_one_line(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main([str(config), "--dry-run", "--set", f"inference.port={port}"]) == 2
    [said] = capsys.readouterr().err.splitlines()
    assert f"cannot listen on port {port} of" in said


@pytest.mark.slow
def test_a_dry_run_that_fails_says_so_in_one_line(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: EmbeddedServer, say: object) -> None:
        raise EngineError("no memory left")

    monkeypatch.setattr(EmbeddedServer, "start", refuse)
    assert main([str(config), "--dry-run"]) == 1
    assert capsys.readouterr().err == "vf-rl: no memory left\n"


def test_usage_errors_exit_with_2(config: Path) -> None:
    for args in ([], [str(config), "--resume", "x"], ["--resume", "x", "--dry-run"]):
        with pytest.raises(SystemExit) as error:
            main(args)
        assert error.value.code == 2


def test_dry_run_starts_everything_and_leaves_nothing(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(config), "--dry-run"]) == 0
    said = capsys.readouterr().out
    for word in ("model", "engine", "environment", "memory", "everything starts"):
        assert word in said
    assert not (config.parent / "runs").exists()


@pytest.mark.slow
def test_a_budget_is_found_and_the_run_has_the_number(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["--set", "run_name=found", "--set", "micro_batch_tokens=auto"]
    assert main([str(config), *settings]) == 0
    said = re.search(r"micro-batch +([\d,]+) tokens, found for 80%", capsys.readouterr().out)
    assert said is not None
    kept, _ = load_config(config.parent / "runs" / "found" / "config.toml")
    assert kept.args.micro_batch_tokens == int(said[1].replace(",", ""))


@pytest.mark.slow
def test_a_run_leaves_what_it_promises_and_can_be_resumed(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(config), "--set", "run_name=first"]) == 0
    said = capsys.readouterr().out
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

    assert main([str(config), "--set", "run_name=first"]) == 2
    assert "never overwritten" in capsys.readouterr().err

    assert main(["--resume", str(run), "--set", "max_steps=3"]) == 0
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
