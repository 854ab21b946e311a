"""Rotary positions whose frequencies depend on how long a sequence is: LongRoPE and dynamic NTK.

Transformers chooses them by the largest position in a forward pass. So a token's log-probability
would depend on which other sequences are in the pass, and on whether one of them has grown.

What is right here is what the engine samples from. vLLM takes LongRoPE's long factors for every
sequence if its ``max_model_len``, here the run's ``max_seq_len``, is beyond the original length,
otherwise the short ones. :func:`fix_rotary` has a module do the same, for the trainer and for the
embedded engine. Transformers itself gives the same for a sequence alone, if its length and
``max_seq_len`` are on one side of the original length.

With dynamic NTK, the frequencies are those that transformers takes for ``max_seq_len`` tokens. A
vLLM server takes those for the whole context that its config names: there, the two differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def fix_rotary(model: Any, longest: int) -> None:
    """Have a model's frequencies be those of its longest sequence, whatever is in a pass.

    The rotary embedding is given one more position than it is asked for, the last of the longest
    sequence, and its part of the result is dropped.

    Args:
        model: A causal language model of transformers'.
        longest: Tokens of the longest sequence in the run.
    """

    def add_last(module: Any, args: Any, options: dict[str, Any]) -> Any:
        hidden, positions = _of_call(*args, **options)
        last = positions.new_full((*positions.shape[:-1], 1), longest - 1)
        rest = {name: given for name, given in options.items() if name not in ("x", "position_ids")}
        return (hidden, torch.cat([positions, last], -1), *args[2:]), rest

    def drop_last(module: Any, args: Any, output: Any) -> Any:
        if isinstance(output, torch.Tensor):
            return output[..., :-1, :]
        return tuple(part[..., :-1, :] for part in output)

    for module in _that_choose(model):
        module.register_forward_pre_hook(add_last, with_kwargs=True)
        module.register_forward_hook(drop_last)


def _of_call(x: Any, position_ids: Any, *args: Any, **options: Any) -> tuple[Any, Any]:
    """Return the hidden states and positions of a call of transformers' rotary embeddings."""
    return x, position_ids


def _that_choose(model: Any) -> Iterator[Any]:
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        named = kinds.values() if isinstance(kinds, dict) else [kinds]
        if any(
            isinstance(kind, str) and ("dynamic" in kind or kind == "longrope") for kind in named
        ):
            yield module
