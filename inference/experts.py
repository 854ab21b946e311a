"""What an engine says of the experts of tokens, on the way to the trainer.

The experts of a token are bytes: the numbers of its k experts in each of L layers, as L·k unsigned
16-bit integers, little-endian, layer by layer. Over HTTP they are what vLLM sends as
``routed_experts``: base64 of a ``.npy`` file of integers ``[tokens, L, k]``.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

from vf.runtime.errors import ModelError


def encode_experts(rows: Sequence[bytes]) -> str:
    """Return the experts of tokens as an engine sends them."""
    import numpy as np

    numbers = np.frombuffer(b"".join(rows), "<u2").reshape(len(rows), -1)
    with io.BytesIO() as file:
        np.save(file, numbers, allow_pickle=False)
        return base64.b64encode(file.getbuffer()).decode("ascii")


def decode_experts(text: Any) -> tuple[bytes, ...]:
    """Return the experts of each token.

    Raises:
        ValueError: If the value is not what an engine sends.
    """
    import numpy as np

    if not isinstance(text, str):
        raise ValueError("the answer has no routed_experts")
    with io.BytesIO(base64.b64decode(text)) as file:
        numbers = np.load(file, allow_pickle=False)
    if numbers.ndim < 2 or numbers.dtype.kind not in "iu":
        raise ValueError(f"routed_experts has the shape {numbers.shape}")
    rows = numbers.reshape(len(numbers), -1).astype("<u2")
    return tuple(row.tobytes() for row in rows)


def requested_experts(text: Any, first: int | None, prompt: int, sampled: int) -> tuple[bytes, ...]:
    """Return the experts that were asked for; none if none were.

    Args:
        text: The server's value for them.
        first: The first token of the prompt whose experts were asked for; None for none.
        prompt: Tokens in the prompt.
        sampled: Tokens in the answer. No pass has read the last.

    Raises:
        ModelError: If the server sent none, or those of another number of tokens.
    """
    if first is None:
        return ()
    try:
        rows = decode_experts(text)
    except ValueError as error:
        raise ModelError(
            f"trainer.args.router_replay: the server does not say which experts it used ({error}); "
            "it must be started with --enable-return-routed-experts"
        ) from error
    if len(rows) != prompt - first + sampled - 1:
        raise ModelError(
            f"the server sent the experts of {len(rows)} tokens, not of "
            f"{prompt - first + sampled - 1}"
        )
    return rows
