"""What passes and samples come to, in the two forms in which clients ask for it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vf.trainer.tinker_api.protobuf import encode

FLOAT32 = 1  # the number of the dtype
RECORD = "ArrayRecord"
NOTHING = -99999.0  # in place of a log-probability of no token
STOP, LENGTH = 0, 1


@dataclass(frozen=True, slots=True)
class PassOutput:
    """``ForwardBackwardOutput``.

    Attributes:
        logprobs: Of each datum's targets, float32 ``[N]`` or ``[N, K]``, in nats.
        metrics: By name; what is behind the colon says how a client joins those of several calls.
    """

    logprobs: Sequence[np.ndarray]
    metrics: dict[str, float]

    def json(self) -> dict[str, Any]:
        """Return it as JSON."""
        outputs = [
            {
                "logprobs": {
                    "data": array.ravel().tolist(),
                    "dtype": "float32",
                    "shape": [*array.shape],
                }
            }
            for array in self.logprobs
        ]
        return {
            "loss_fn_output_type": RECORD,
            "loss_fn_outputs": outputs,
            "metrics": self.metrics,
        }

    def protobuf(self) -> bytes:
        """Return it as a protocol buffer, with a record for each run of data with the same K."""
        runs = itertools.groupby(self.logprobs, key=lambda array: array.shape[1:])
        records = b"".join(encode(2, _record([*arrays], shape)) for shape, arrays in runs)
        metrics = b"".join(
            encode(3, encode(1, name) + encode(2, float(value)))
            for name, value in self.metrics.items()
        )
        return encode(1, RECORD) + records + metrics


def _record(arrays: Sequence[np.ndarray], trailing: tuple[int, ...]) -> bytes:
    """Return arrays in one, with their offsets in bytes, and their shape behind the first axis."""
    ends = np.cumsum([0, *(array.nbytes for array in arrays)], dtype="<i8")
    data = b"".join(array.astype("<f4").tobytes() for array in arrays)
    batched = encode(1, data) + encode(2, ends.tobytes()) + encode(3, FLOAT32)
    batched += b"".join(encode(4, size) for size in trailing)
    fields = encode(1, "logprobs") + encode(2, batched)
    return encode(1, RECORD) + encode(2, fields) + encode(3, len(arrays))


@dataclass(frozen=True, slots=True)
class Sampled:
    """One sample: its token ids, their log-probabilities in nats, and why it ended."""

    tokens: list[int]
    logprobs: list[float]
    stopped: bool

    def json(self) -> dict[str, Any]:
        """Return it as JSON."""
        reason = "stop" if self.stopped else "length"
        return {"stop_reason": reason, "tokens": self.tokens, "logprobs": self.logprobs}

    def protobuf(self) -> bytes:
        """Return it as a protocol buffer."""
        tokens = np.asarray(self.tokens, "<i4").tobytes()
        logprobs = np.asarray(self.logprobs, "<f4").tobytes()
        return encode(1, STOP if self.stopped else LENGTH) + encode(2, tokens) + encode(3, logprobs)


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """What the model says of a prompt of N tokens.

    Attributes:
        logprobs: float32 ``[N]``, in nats; NaN where it was not asked. None if it was not at all.
        top_ids: int32 ``[N, k]``, the likeliest tokens; None if they were not asked for.
        top_logprobs: float32 ``[N, k]``; ``NOTHING`` where there is none.
    """

    logprobs: np.ndarray | None = None
    top_ids: np.ndarray | None = None
    top_logprobs: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class SampleOutput:
    """``SampleResponse``."""

    sequences: Sequence[Sampled]
    prompt: PromptLogprobs = PromptLogprobs()

    def json(self) -> dict[str, Any]:
        """Return it as JSON."""
        body: dict[str, Any] = {"type": "sample", "sequences": [s.json() for s in self.sequences]}
        if (logprobs := self.prompt.logprobs) is not None:
            body["prompt_logprobs"] = [None if np.isnan(x) else float(x) for x in logprobs]
        ids, top = self.prompt.top_ids, self.prompt.top_logprobs
        if ids is not None and top is not None:
            body["topk_prompt_logprobs"] = [
                None if row[0] == NOTHING else [*zip(own.tolist(), row.tolist(), strict=True)]
                for own, row in zip(ids, top, strict=True)
            ]
        return body

    def protobuf(self) -> bytes:
        """Return it as a protocol buffer."""
        message = b"".join(encode(1, sequence.protobuf()) for sequence in self.sequences)
        if (logprobs := self.prompt.logprobs) is not None:
            message += encode(2, logprobs.astype("<f4").tobytes())
        ids, top = self.prompt.top_ids, self.prompt.top_logprobs
        if ids is not None and top is not None:
            arrays = encode(1, ids.astype("<i4").tobytes()) + encode(2, top.astype("<f4").tobytes())
            message += encode(3, arrays + encode(3, ids.shape[1]) + encode(4, ids.shape[0]))
        return message
