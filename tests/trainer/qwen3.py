"""Folders of Qwen3 models without weights: their public sizes, and the tiny model's tokenizer."""

from __future__ import annotations

import shutil
from pathlib import Path

from transformers import Qwen3Config

from vf.inference.model_files import resolve_model

# Width, layers, width of the MLP, query heads, and whether head and embedding are tied.
SIZES = {
    "Qwen3-0.6B": (1024, 28, 3072, 16, True),
    "Qwen3-1.7B": (2048, 28, 6144, 16, True),
    "Qwen3-4B": (2560, 36, 9728, 32, True),
    "Qwen3-8B": (4096, 36, 12288, 32, False),
}


def qwen3_folder(name: str, place: Path) -> Path:
    """Write a model's config and a tokenizer, and return their folder."""
    hidden, layers, intermediate, heads, tied = SIZES[name]
    folder = place / name
    Qwen3Config(
        vocab_size=151936,
        hidden_size=hidden,
        num_hidden_layers=layers,
        intermediate_size=intermediate,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=tied,
        max_position_embeddings=40960,
    ).save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(Path(resolve_model("tiny")) / file, folder)
    return folder
