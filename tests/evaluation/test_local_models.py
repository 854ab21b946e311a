"""Checkpoints that `vf-rl eval` starts an engine for are sampled and parsed as in training."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

import vf
from tests.evaluation.commands import call, results, traces

pytest.importorskip("torch")

from tests.inference.chat_templates import HIDES_TOOLS
from tests.inference.tiny_serving import load_model, running_engine, running_server
from vf.evaluation.eval_config import ModelConfig
from vf.evaluation.models import check_local
from vf.inference.model import Sampling
from vf.inference.model_files import resolve_model
from vf.inference.models.token_model import TokenModel
from vf.inference.rendering.renderer import Renderer
from vf.inference.token_client import TokenClient

pytestmark = pytest.mark.slow

ARGV = ["calculator", "-r", "2", "--args", '{"max_operand": 20}', "--max-tokens"]
WHOLE = [*ARGV, "48", "-n", "2"]
BRIEF = [*ARGV, "12", "-n", "2", "--max-turns", "1"]


def sampled(every: list[vf.Trace]) -> dict[int, list[int]]:
    """Return the token ids of each rollout by its seed."""
    assert all(len(trace.branches) == 1 for trace in every)
    return {trace.seed: trace.branches[0].token_ids for trace in every}


async def as_in_training(base_url: str) -> list[vf.Trace]:
    """Run the same rollouts through the parts that the trainer is made of."""
    client = TokenClient.to(base_url, "tiny")
    renderer = Renderer.from_pretrained(resolve_model("tiny"))
    model = TokenModel(client, renderer, max_seq_len=1024)
    try:
        evaluation = await vf.evaluate(
            vf.make("calculator", max_operand=20),
            model,
            tasks=2,
            rollouts_per_example=2,
            sampling=Sampling(max_tokens=48),
        )
    finally:
        await client.close()
    return evaluation.traces


def test_tiny_and_a_copy_of_its_folder_sample_what_the_trainer_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(resolve_model("tiny"), copy)
    for name, model in (("a", "tiny"), ("b", str(copy))):
        code, _, err = call(capsys, *WHOLE, "-m", model, "-o", str(tmp_path / name))
        assert code == 0, err
        assert "starting the embedded engine, 1024 tokens of context" in err
    with running_engine(load_model(), max_seq_len=1024) as engine, running_server(engine) as url:
        expected = sampled(asyncio.run(as_in_training(url)))
    assert len(expected) == 4
    assert sampled(traces(tmp_path / "a")) == expected
    assert sampled(traces(tmp_path / "b")) == expected
    assert results(tmp_path / "a")["turns"] > 4  # it called its tool


@pytest.mark.slow
def test_an_adapter_of_a_training_run_is_heard(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(
        load_model(), LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    folder = tmp_path / "adapter"
    for scale, name in ((0.0, "silent"), (0.5, "loud")):
        torch.manual_seed(0)
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                if "lora_B" in parameter_name:
                    parameter.copy_(scale * torch.randn_like(parameter))
        model.save_pretrained(folder)
        config = json.loads((folder / "adapter_config.json").read_text())
        config["base_model_name_or_path"] = "tiny"
        (folder / "adapter_config.json").write_text(json.dumps(config))
        argv = [*BRIEF, "-m", str(folder), "-o", str(tmp_path / name)]
        assert call(capsys, *argv)[0] == 0
    assert call(capsys, *BRIEF, "-m", "tiny", "-o", str(tmp_path / "base"))[0] == 0
    base = sampled(traces(tmp_path / "base"))
    assert sampled(traces(tmp_path / "silent")) == base
    assert sampled(traces(tmp_path / "loud")) != base


def test_a_checkpoint_without_a_tokenizer_borrows_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(Path(resolve_model("tiny")) / name, bare)
    argv = ["reverse-text", "-n", "1", "--max-tokens", "4", "-m", str(bare), "-o"]
    code, _, err = call(capsys, *argv, str(tmp_path / "out"))
    assert code == 2
    assert "cannot load its tokenizer" in err
    assert call(capsys, *argv, str(tmp_path / "out2"), "--tokenizer", "tiny")[0] == 0
    assert results(tmp_path / "out2")["scored"] == 1


def test_tools_that_the_model_is_not_told_of_are_a_warning_above_the_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hides = tmp_path / "hides.jinja"
    hides.write_text(HIDES_TOOLS, encoding="utf-8")
    warning = "WARNING: tiny: the chat template does not tell the model of its tools."
    argv = [*BRIEF, "-m", "tiny", "--chat-template", str(hides), "-o"]
    code, _, err = call(capsys, *argv, str(tmp_path / "hidden"))
    assert code == 0
    assert err.count(warning) == 2  # before, and above the results
    code, _, err = call(capsys, *argv, str(tmp_path / "text"), "--tool-style", "text")
    assert code == 0
    assert "WARNING" not in err
    [one, *_] = traces(tmp_path / "text")
    prompt = Renderer.from_pretrained(resolve_model("tiny")).decode(one.branches[0].token_ids)
    assert '<tools>\n{"type": "function", "function": {"name": "calculate"' in prompt


def test_what_is_wrong_with_a_local_model_is_reported(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(vf.ConfigError, match="is not an adapter's config"):
        check_local(ModelConfig(model=str(tmp_path)))
    with pytest.raises(vf.ConfigError, match="no such program"):
        check_local(
            ModelConfig(model="tiny", engine="vllm", inference={"python": "/no/such/python"})
        )
