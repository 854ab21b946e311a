"""Random models and samples, made on the spot: nothing is downloaded."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch

from vf.traces.trace import Branch
from vf.trainer.learning.batches.batch import Sample
from vf.trainer.learning.memory.trainer_memory import Shape

# Small models of families that are trained in each of the three ways. Head widths of 64 have
# kernels on every device.
TINY: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {  # by family: how it is trained, its settings
    "Qwen3": ("packed", TINY),
    "Llama": ("packed", TINY),
    "Gemma3Text": ("packed", TINY | {"final_logit_softcapping": 1.0}),
    "Lfm2": ("packed", TINY | {"layer_types": ["conv", "full_attention", "conv"]}),
}
QWEN3_06B: dict[str, Any] = {
    "vocab_size": 151_936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40_960,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": True,
}


def save_random(
    family: str, settings: dict[str, Any], folder: Path, *, sharpen: float = 1.0
) -> Shape:
    """Write a random model in float32 whose weights are exact in bfloat16, too.

    Args:
        family: As transformers names its config, without "Config".
        settings: Of that config.
        folder: Where to.
        sharpen: Factor of the matrices: far from uniform answers make mistakes visible.

    Returns:
        Its shape, as the memory plan reads it.
    """
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**settings)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(sharpen)
            parameter.copy_(parameter.bfloat16())
    model.save_pretrained(folder)
    return Shape.of(config, model)


def make_samples(
    groups: int, rollouts: int, prompt: int, completion: int, vocabulary: int
) -> list[Sample]:
    """Return groups of rollouts that begin with one prompt each.

    Args:
        groups: How many prompts.
        rollouts: Of each prompt.
        prompt: Its tokens.
        completion: Sampled tokens of a rollout.
        vocabulary: Ids are below it.
    """
    rng = random.Random(0)

    def ids(count: int) -> list[int]:
        return [rng.randrange(2, vocabulary) for _ in range(count)]

    made = []
    for _ in range(groups):
        shared = ids(prompt)
        for _ in range(rollouts):
            branch = Branch()
            branch.add_context(shared, 0)
            sampled, uniform = ids(completion), -torch.log(torch.tensor(vocabulary)).item()
            branch.add_sampled(sampled, [uniform] * completion, [0] * completion, 0)
            made.append(Sample(branch, rng.uniform(-1.0, 1.0)))
    return made
