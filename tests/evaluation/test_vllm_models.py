"""A vLLM server that `vf-rl eval` starts: its stand-in, whose every token tells its weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.evaluation.commands import call, results, traces

pytest.importorskip("torch")

from tests.inference.vllm.stand_in_engine import EXECUTABLE, Journal
from vf.inference.model_files import resolve_model

CONFIG = """
tasks = 2
max_tokens = 4

[[environments]]
id = "reverse-text"

[[models]]
model = {model}
name = "served"
engine = "vllm"
max_seq_len = 256

[models.inference]
executable = {executable}
args = {{ gpu_memory_utilization = 0.5 }}
env = {env}
"""


def evaluate(folder: Path, model: str, capsys: pytest.CaptureFixture[str], **how: object) -> str:
    """Evaluate on the stand-in; return what was said."""
    variables = {
        "STAND_IN_JOURNAL": str(folder / "journal.jsonl"),
        "STAND_IN": json.dumps({"hide": ["/tokenize"], **how}),
    }
    env = ", ".join(f"{name} = {json.dumps(value)}" for name, value in variables.items())
    text = CONFIG.format(
        model=json.dumps(model), executable=json.dumps(EXECUTABLE), env=f"{{ {env} }}"
    )
    (folder / "vllm.toml").write_text(text)
    code, _, err = call(capsys, str(folder / "vllm.toml"), "-o", str(folder / "out"))
    assert code == (1 if how else 0), err
    return err


def test_a_whole_model_is_served_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model"
    shutil.copytree(resolve_model("tiny"), model)
    (model / "number.txt").write_text("7")
    evaluate(tmp_path, str(model), capsys)
    for trace in traces(tmp_path / "out"):
        (branch,) = trace.branches
        assert branch.token_ids[-4:] == [7] * 4
    journal = Journal(tmp_path / "journal.jsonl")
    assert journal.flag("--model") == str(model)
    assert journal.flag("--max-model-len") == "256"
    assert journal.flag("--gpu-memory-utilization") == "0.5"
    assert "--enable-lora" not in journal.starts[-1]["start"]
    assert journal.calls("/pause", "/collective_rpc", "/v1/load_lora_adapter") == []
    assert results(tmp_path / "out")["scored"] == 2


def test_an_adapter_is_loaded_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    config = {"base_model_name_or_path": "tiny", "r": 4}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    (adapter / "number.txt").write_text("9")
    evaluate(tmp_path, str(adapter), capsys)
    assert [t.branches[0].token_ids[-4:] for t in traces(tmp_path / "out")] == [[9] * 4] * 2
    journal = Journal(tmp_path / "journal.jsonl")
    assert len(journal.calls("/v1/load_lora_adapter")) == 1


def test_a_server_that_does_not_start_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = evaluate(tmp_path, "tiny", capsys, last_words="CUDA out of memory")
    assert "the vLLM server did not start (exit code 1)" in said
    assert "CUDA out of memory" in said


def test_a_temperature_that_vllm_refuses_starts_no_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["-m", "tiny", "--engine", "vllm", "--temperature", "2.5", "-o", str(tmp_path / "out")]
    code, _, err = call(capsys, "reverse-text", *argv)
    assert code == 2
    assert "temperature = 2.5, but vLLM samples at 2 at most" in err
