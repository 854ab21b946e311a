"""How much memory a trainer process will need at its peak, from the shape of the model alone.

The peak is in the backward pass of the largest micro-batch of a step, after the first one of the
run: gradients of earlier micro-batches and Adam's moments are there, and all that the forward pass
kept. The formulas are those of a dense decoder in transformers (RMS norms, rotary positions, a
gated MLP of three matrices) trained packed; models with other layers are near it at best.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass
from typing import Any

from vf.trainer.learning.head import CHUNK_LOGITS
from vf.trainer.processes.launch import world
from vf.trainer.settings.config import TrainerArgs

CEILING = 2**16  # tokens in a micro-batch that is found automatically
GRAIN = 256
SHARE = 0.8  # of the free memory, for a micro-batch that is found automatically
SHARE_BESIDE_SERVER = 0.4  # where this run starts an inference server on CUDA devices too
PAGE_TOKENS = 16  # of the embedded engine's cache
FLOAT32 = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """What memory depends on in a model.

    Attributes:
        parameters: All of them; those that two layers share count once.
        vocabulary: V, tokens that it knows.
        layers: How many.
        hidden: H, its width.
        intermediate: I, the width inside of the MLP.
        queries: A, query heads times their width.
        keys: K, key heads times their width.
        heads: Query heads.
    """

    parameters: int
    vocabulary: int
    layers: int
    hidden: int
    intermediate: int
    queries: int
    keys: int
    heads: int

    @classmethod
    def of(cls, config: Any, parameters: int) -> Shape:
        """Read it from a model's config, one of transformers'."""
        text = config.get_text_config()
        heads = text.num_attention_heads
        kv_heads = getattr(text, "num_key_value_heads", None) or heads
        width = getattr(text, "head_dim", None) or text.hidden_size // heads
        intermediate = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
        return cls(
            parameters,
            text.vocab_size,
            text.num_hidden_layers,
            text.hidden_size,
            intermediate,
            heads * width,
            kv_heads * width,
            heads,
        )


def predict(
    shape: Shape,
    args: TrainerArgs,
    tokens: int,
    *,
    requests: int = 0,
    max_seq_len: int = 0,
    parts: int = 1,
) -> dict[str, int]:
    """Return the bytes of a trainer process at its peak, by purpose.

    With w bytes in a weight (2 with ``bf16``, else 4) and t trained parameters
    (:func:`trained_parameters`):

    - ``weights``: w·parameters, and 4·t for an adapter.
    - ``gradients and optimizer``: 12·t, a gradient and Adam's two moments in float32.
    - ``reference``: w·parameters, if ``reference_model`` is set.
    - ``key-value cache``: of the embedded engine, w·2·K·layers for each of its tokens.
    - ``activations``: see :func:`activations`.
    - ``head and scratch``: see :func:`scratch`.

    Args:
        shape: Of the model.
        args: ``[trainer.args]``.
        tokens: T, that the largest micro-batch computes.
        requests: That the embedded engine answers at once; 0 where another engine answers.
        max_seq_len: Tokens that its cache holds for each.
        parts: Processes that weights, gradients and optimizer are spread over.
    """
    width, trained = 2 if args.bf16 is True else FLOAT32, trained_parameters(shape, args)
    adapter = FLOAT32 * trained if args.use_lora else 0
    cached = requests * (math.ceil(max_seq_len / PAGE_TOKENS) + 1) * PAGE_TOKENS
    found = {
        "weights": (shape.parameters * width + adapter) // parts,
        "gradients and optimizer": 3 * FLOAT32 * trained // parts,
        "reference": shape.parameters * width // parts if args.reference_model is not None else 0,
        "key-value cache": cached * 2 * shape.keys * shape.layers * width,
        "activations": activations(shape, args, tokens),
        "head and scratch": scratch(shape, args, tokens),
    }
    return {name: size for name, size in found.items() if size}


def largest_budget(
    shape: Shape, args: TrainerArgs, free: int, *, requests: int = 0, parts: int = 1
) -> int:
    """Return the most tokens in a micro-batch whose predicted peak is within the free memory.

    It is a multiple of 256 tokens above ``max_seq_len``, at most :data:`CEILING`, and not more than
    a step can have. Where not even ``max_seq_len`` tokens fit, it is ``max_seq_len``.

    Args:
        shape: Of the model.
        args: ``[trainer.args]``.
        free: Bytes.
        requests: That the embedded engine answers at once.
        parts: Processes that weights, gradients and optimizer are spread over.
    """
    least = args.max_seq_len
    most = max(least, min(CEILING, args.batch_size * args.max_seq_len))

    def peak(tokens: int) -> int:
        limits = {"requests": requests, "max_seq_len": args.max_seq_len}
        return sum(predict(shape, args, tokens, **limits, parts=parts).values())

    choices = range(least, most + 1, GRAIN)
    return choices[max(0, bisect.bisect_right(choices, free, key=peak) - 1)]


def free_memory() -> int:
    """Return the bytes that are free on the device of this process; on a CPU, its share of them."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.mem_get_info()[0]
    import psutil

    return int(psutil.virtual_memory().available) // world().size


def trained_parameters(shape: Shape, args: TrainerArgs) -> int:
    """Return t: all parameters, or r·(in + out) for each layer that an adapter of rank r is on."""
    if not args.use_lora:
        return shape.parameters
    h, i, a, k = shape.hidden, shape.intermediate, shape.queries, shape.keys
    attention = {"q_proj": h + a, "k_proj": h + k, "v_proj": h + k, "o_proj": a + h}
    mlp = {"gate_proj": h + i, "up_proj": h + i, "down_proj": i + h}
    if (names := args.lora_target_modules) is not None:
        known = attention | mlp
        # Names that are not known count as if they were of the mean size.
        mean = sum(known.values()) / len(known)
        per_layer = sum(known.get(name.rpartition(".")[2], mean) for name in names)
        return round(args.lora_rank * shape.layers * per_layer)
    per_layer = sum(attention.values()) * args.train_attn + sum(mlp.values()) * args.train_mlp
    head = (h + shape.vocabulary) * args.train_unembed
    return args.lora_rank * (shape.layers * per_layer + head)


def kept_per_token(shape: Shape, args: TrainerArgs) -> int:
    """Return the bytes that one layer keeps of a token for its backward pass.

    In float32: 4·(n·H + 4·I + 2·A + 2·K + heads + 2), where n = 6 if all is trained (of each of the
    two norms its input, what it is scaled from, and its output) and 4 beside an adapter; 4·I are
    the gate, its activation, the other factor and their product; 2·A the queries and the output of
    the attention, 2·K its keys and values, heads its log-sum-exp. An adapter keeps 4·r for each of
    seven matrices. In bfloat16 the same counts 2 bytes, but norms keep 2·H in float32, and each
    adapted matrix its input in float32: 4·(5·H + A + I).
    """
    h, i, a, k = shape.hidden, shape.intermediate, shape.queries, shape.keys
    width = 2 if args.bf16 is True else FLOAT32
    norms = 4 if args.use_lora else 6
    kept = width * (norms * h + 4 * i + 2 * a + 2 * k) + FLOAT32 * (shape.heads + 2)
    if args.use_lora:
        kept += FLOAT32 * 7 * args.lora_rank
    if args.bf16 is True:
        kept += FLOAT32 * (2 * h + 5 * h + a + i)
    return kept


def activations(shape: Shape, args: TrainerArgs, tokens: int) -> int:
    """Return the bytes that the forward pass of T tokens keeps.

    T·layers·:func:`kept_per_token`; with ``gradient_checkpointing`` T·layers·w·H, the layers'
    inputs, and one layer's as above. Behind the layers, 3·T·w·H for the last norm.
    """
    width = 2 if args.bf16 is True else FLOAT32
    layer = kept_per_token(shape, args)
    if args.gradient_checkpointing is True:
        per_token = shape.layers * width * shape.hidden + layer
    else:
        per_token = shape.layers * layer
    return tokens * (per_token + 3 * width * shape.hidden)


def scratch(shape: Shape, args: TrainerArgs, tokens: int) -> int:
    """Return the bytes of what lives for a moment only, at the worst moment.

    The larger of the head's and a layer's. The head has c = min(T·V, 2²⁵) logits in work: 3·4·c in
    the forward pass (logits, probabilities, their product); where its weight is trained, 2·4·c and
    the weight's gradient, 4·V·H, in the backward pass. It makes them all at once with
    ``packing = false``: c = T·V, five times. A layer's backward pass has 3·T·w·I.
    """
    logits = tokens * shape.vocabulary
    if not args.packing:
        head = 5 * FLOAT32 * logits
    else:
        chunk = FLOAT32 * min(logits, CHUNK_LOGITS)
        head = 3 * chunk
        if not args.use_lora:
            head = max(head, 2 * chunk + FLOAT32 * shape.vocabulary * shape.hidden)
    return max(head, 3 * tokens * (2 if args.bf16 is True else FLOAT32) * shape.intermediate)
