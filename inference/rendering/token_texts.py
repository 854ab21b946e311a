"""What single tokens read as, for people; never for training."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from vf.inference.tiny_path import resolve_model


def token_texts(model: str) -> Callable[[Sequence[int]], list[str]] | None:
    """Return what gives the texts of a model's tokens, or None if its tokenizer is not here.

    Only a folder, or what a hub's cache on this machine already holds, is looked into: nothing is
    fetched. An id that the tokenizer does not know, and a token that is no whole character, read
    as the empty text.

    Args:
        model: A folder, ``tiny``, or a name on the hub.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(resolve_model(model), local_files_only=True)
    except Exception:  # not installed, not here, or none that can be read: ids are shown then
        return None
    size = len(tokenizer)

    def text(i: int) -> str:
        decoded: str = tokenizer.decode([i], clean_up_tokenization_spaces=False)
        return "" if "\N{REPLACEMENT CHARACTER}" in decoded else decoded

    def texts(ids: Sequence[int]) -> list[str]:
        return [text(i) if 0 <= i < size else "" for i in ids]

    return texts
