"""Text models that were loaded from composite checkpoints are written back as these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from tests.trainer.learning.families import BY_NAME, widen
from tests.trainer.learning.test_policy import samples
from vf.inference.model_files import save_module
from vf.trainer.learning.policy import Policy
from vf.trainer.saving.merging import merge
from vf.trainer.settings.config import TrainerArgs

PROMPT, ANSWER = [5, 9, 40, 7], [11, 300, 2]
WHOLE = {
    "Gemma 3": "Gemma3ForConditionalGeneration",
    "Qwen3.5": "Qwen3_5ForConditionalGeneration",
    "Qwen3.5-MoE": "Qwen3_5MoeForConditionalGeneration",
    "Llama 4": "Llama4ForConditionalGeneration",
}
SEEN = ("vision", "visual", "multi_modal_projector")


def composite(name: str, folder: Path) -> dict[str, torch.Tensor]:
    """Write a random composite checkpoint; return its tensors."""
    config = BY_NAME[name].config(vocab_size=512)
    model = getattr(transformers, WHOLE[name])(config)
    widen(model)
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text("{}")
    return load_file(folder / "model.safetensors")


def logprobs(folder: Path, name: str) -> list[float]:
    """Return what the composite class makes of the answer's tokens."""
    model, found = getattr(transformers, WHOLE[name]).from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    assert not any(found.values()), found
    ids = torch.tensor([PROMPT + ANSWER])
    with torch.no_grad():
        rows = model.eval()(input_ids=ids).logits[0, len(PROMPT) - 1 : -1].log_softmax(-1)
    return [float(row[token]) for row, token in zip(rows, ANSWER, strict=True)]


def check(folder: Path, before: dict[str, torch.Tensor], name: str, expected: list[float]) -> None:
    after = load_file(folder / "model.safetensors")
    assert after.keys() == before.keys()
    for key, tensor in before.items():
        if any(part in key for part in SEEN):
            assert torch.equal(tensor, after[key]), key
    assert any(not torch.equal(tensor, after[key]) for key, tensor in before.items())
    config = transformers.AutoConfig.from_pretrained(folder)
    assert config.architectures == [WHOLE[name]]
    assert logprobs(folder, name) == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_a_trained_text_model_is_put_back_into_its_composite(name: str, tmp_path: Path) -> None:
    before = composite(name, tmp_path / "base")
    args: dict[str, Any] = {"max_seq_len": 64, "max_prompt_len": 32, "learning_rate": 1e-3}
    policy = Policy(str(tmp_path / "base"), TrainerArgs(use_lora=False, **args))
    first = policy.logprobs(PROMPT, ANSWER)
    assert first == pytest.approx(logprobs(tmp_path / "base", name), abs=1e-4)
    policy.update(samples())
    expected = policy.logprobs(PROMPT, ANSWER)
    assert max(abs(a - b) for a, b in zip(first, expected, strict=True)) > 1e-3

    policy.weights.save(tmp_path / "whole")
    check(tmp_path / "whole", before, name, expected)
    sent = {key: tensor.shape for key, tensor in policy.weights.named_tensors()}
    assert sent.items() <= {key: tensor.shape for key, tensor in before.items()}.items()

    # A checkpoint's own folder is where an exported model is read from.
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    save_module(again, tmp_path / "exported")
    check(tmp_path / "exported", before, name, expected)


@pytest.mark.parametrize("name", ["Gemma 3", "Qwen3.5-MoE"])
def test_a_merged_adapter_is_put_back_into_its_composite(name: str, tmp_path: Path) -> None:
    before = composite(name, tmp_path / "base")
    args = TrainerArgs(max_seq_len=64, max_prompt_len=32, learning_rate=0.02, lora_rank=4)
    policy = Policy(str(tmp_path / "base"), args)
    policy.update(samples())
    policy.weights.save(tmp_path / "adapter")
    merged, _ = merge(tmp_path / "adapter", str(tmp_path / "base"), torch.float32)
    save_module(merged, tmp_path / "merged")
    check(tmp_path / "merged", before, name, policy.logprobs(PROMPT, ANSWER))
