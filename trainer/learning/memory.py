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
from typing import TYPE_CHECKING, Any

from vf.trainer.learning.head import CHUNK_LOGITS
from vf.trainer.processes.launch import Sharing
from vf.trainer.settings.config import TrainerArgs

if TYPE_CHECKING:
    import torch

CEILING = 2**16  # tokens in a micro-batch that is found automatically
GRAIN = 256
SHARE = 0.8  # of the free memory, for a micro-batch that is found automatically
PAGE_TOKENS = 16  # of the embedded engine's cache
FLOAT32, BFLOAT16 = 4, 2
NF4 = 0.5 + 1 / 64 + 4 / (64 * 256)  # a weight, and its share of the scales and of their scales
EIGHT_BITS = 1 + 4 / 256  # a moment, and its share of the scales
CUDA_CONTEXT = 600 * 2**20  # of a process: the context, cuBLAS' workspaces
NOT_SHARED = Sharing()
SHARED_FROM = {"optimizer": 1, "gradients": 2, "weights": 3, "reference": 3}  # this stage of ZeRO
FRAGMENTS = 0.05  # of what PyTorch's allocator holds, in gaps between tensors


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
        outside: Parameters of the embedding and the head; once if they are tied.
        norms_heads: Whether queries and keys are normed in each head, as in Qwen3.
    """

    parameters: int
    vocabulary: int
    layers: int
    hidden: int
    intermediate: int
    queries: int
    keys: int
    heads: int
    outside: int
    norms_heads: bool = False

    @property
    def layer(self) -> int:
        """Parameters of one layer."""
        return (self.parameters - self.outside) // self.layers

    @classmethod
    def of(cls, config: Any, model: torch.nn.Module) -> Shape:
        """Read it from a model of transformers', on the meta device or another, and its config."""
        text = config.get_text_config()
        heads = text.num_attention_heads
        kv_heads = getattr(text, "num_key_value_heads", None) or heads
        width = getattr(text, "head_dim", None) or text.hidden_size // heads
        intermediate = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
        names = [name for name, _ in model.named_modules()]
        return cls(
            sum(parameter.numel() for parameter in model.parameters()),
            text.vocab_size,
            text.num_hidden_layers,
            text.hidden_size,
            intermediate,
            heads * width,
            kv_heads * width,
            heads,
            text.vocab_size * text.hidden_size * (1 if config.tie_word_embeddings else 2),
            any(name.endswith(".q_norm") for name in names),
        )


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a trainer process's memory depends on beside the model and ``[trainer.args]``.

    Attributes:
        requests: That the embedded engine answers at once; 0 where another engine answers.
        sharing: How the trainer's processes share the model.
        cuda: Whether it trains on a CUDA device.
    """

    requests: int = 0
    sharing: Sharing = NOT_SHARED
    cuda: bool = False


ALONE = Surroundings()


def predict(
    shape: Shape, args: TrainerArgs, tokens: int, around: Surroundings = ALONE
) -> dict[str, int]:
    """Return the bytes of a trainer process at its peak, by purpose.

    With w bytes in a number that is computed with (2 with ``bf16``, else 4), t trained parameters
    (:func:`trained_parameters`) and n processes:

    - ``weights``: see :func:`weights`; over n where they are shared.
    - ``gradients``: 4·t; over n where they are shared; none with ``adamw_offload``.
    - ``optimizer``: Adam's two moments, 8·t, or 2·t and their scales with ``adamw_8bit``; over n
      where they are shared; none with ``adamw_offload``.
    - ``reference``: w·parameters, if ``reference_model`` is set; over n as the weights are.
    - ``gathered``: where weights are shared, see :func:`gathered`.
    - ``key-value cache``: of the embedded engine, w·2·K·layers for each of its tokens.
    - What lives for a while only, at the worst time. In a backward pass, ``activations``
      (:func:`activations`) and ``head and scratch`` (:func:`scratch`); while the embedded engine
      samples, ``sampling`` (:func:`sampling`); in the optimizer's step on CUDA, ``optimizer step``:
      4·t, as AdamW steps all parameters together.
    - ``CUDA and fragments``: :data:`CUDA_CONTEXT`, and 5 % of all but the cache, which is a block.

    Publishing comes to less than a backward pass: it begins when activations and gradients have
    gone. What an Accelerate config offloads to the host's memory counts nothing.

    Args:
        shape: Of the model.
        args: ``[trainer.args]``.
        tokens: T, that the largest micro-batch computes.
        around: The process's engine, device and neighbours.
    """
    trained, sharing = trained_parameters(shape, args), around.sharing
    offload = args.optim == "adamw_offload"
    on_host = {
        "weights": sharing.weights_on_host,
        "gradients": offload or sharing.weights_on_host,
        "optimizer": offload or sharing.moments_on_host,
        "reference": False,
    }
    moment = EIGHT_BITS if args.optim == "adamw_8bit" else FLOAT32
    whole = sharing.stage >= SHARED_FROM["weights"]
    lasting = {
        "weights": weights(shape, args, shared=whole),
        "gradients": FLOAT32 * trained,
        "optimizer": int(2 * moment * trained),
        "reference": computed_width(args) * shape.parameters if args.reference_model else 0,
    }
    found = {
        name: 0 if on_host[name] else size // sharing.over(SHARED_FROM[name])
        for name, size in lasting.items()
    }
    found |= {
        "gathered": gathered(shape, args) if whole else 0,
        "key-value cache": cached_tokens(args, around.requests) * cached_per_token(shape, args),
    }
    times: list[dict[str, int]] = [
        {
            "activations": activations(shape, args, tokens),
            "head and scratch": scratch(shape, args, tokens),
        },
        {"sampling": sampling(shape, args, around.requests)},
    ]
    if around.cuda and args.optim == "adamw" and not on_host["optimizer"]:
        times.append(
            {"optimizer step": FLOAT32 * trained // sharing.over(SHARED_FROM["optimizer"])}
        )
    worst: dict[str, int] = max(times, key=lambda time: sum(time.values()))
    found |= worst
    if around.cuda:
        moving = sum(found.values()) - found["key-value cache"]
        found["CUDA and fragments"] = CUDA_CONTEXT + int(FRAGMENTS * moving)
    return {name: size for name, size in found.items() if size}


def largest_budget(shape: Shape, args: TrainerArgs, free: int, around: Surroundings = ALONE) -> int:
    """Return the most tokens in a micro-batch whose predicted peak is within the free memory.

    It is a multiple of 256 tokens above ``max_seq_len``, at most :data:`CEILING`, and not more than
    a step can have. Where not even ``max_seq_len`` tokens fit, it is ``max_seq_len``.

    Args:
        shape: Of the model.
        args: ``[trainer.args]``.
        free: Bytes.
        around: The process's engine, device and neighbours.
    """
    least = args.max_seq_len
    most = max(least, min(CEILING, args.batch_size * args.max_seq_len))

    def peak(tokens: int) -> int:
        return sum(predict(shape, args, tokens, around).values())

    choices = range(least, most + 1, GRAIN)
    return choices[max(0, bisect.bisect_right(choices, free, key=peak) - 1)]


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


def weights(shape: Shape, args: TrainerArgs, *, shared: bool = False) -> int:
    """Return the bytes of all weights.

    What is frozen beneath an adapter: w·parameters, with ``load_in_4bit`` 0.52 bytes for each in a
    layer. What is trained: w·t to compute with, and with ``bf16`` masters of 4·t
    (:mod:`vf.trainer.learning.masters`), which ``adamw_offload`` keeps in the host's memory. Where
    processes share what is trained, 4·t, rounded when it is :func:`gathered`.
    """
    width, trained = computed_width(args), trained_parameters(shape, args)
    frozen = width * shape.parameters if args.use_lora else 0
    if args.load_in_4bit:
        frozen = int(NF4 * (shape.parameters - shape.outside)) + width * shape.outside
    if shared or width == FLOAT32:
        return frozen + FLOAT32 * trained
    masters = 0 if args.optim == "adamw_offload" else FLOAT32
    return frozen + (width + masters) * trained


def gathered(shape: Shape, args: TrainerArgs) -> int:
    """Return the bytes of weights and gradients that a process holds whole for a while.

    The embedding and the head are whole for all of a pass, and so are the layer that computes and
    the next one: w bytes each. Where all is trained, the gradients of all but the next one, of w
    bytes, and of 4 when they are summed.
    """
    whole = computed_width(args) * (shape.outside + 2 * shape.layer)
    trained = 0 if args.use_lora else computed_width(args) + FLOAT32
    return whole + trained * (shape.outside + shape.layer)


def cached_tokens(args: TrainerArgs, requests: int) -> int:
    """Return for how many tokens the embedded engine's cache has room: a context each, in pages."""
    return requests * (math.ceil(args.max_seq_len / PAGE_TOKENS) + 1) * PAGE_TOKENS


def cached_per_token(shape: Shape, args: TrainerArgs) -> int:
    """Return the bytes that a cache has of a token: a key and a value in every layer."""
    return 2 * shape.keys * shape.layers * computed_width(args)


def sampling(shape: Shape, args: TrainerArgs, requests: int) -> int:
    """Return the bytes of the embedded engine's worst moment, beside its cache.

    The larger of one layer's keys and values, read from the cache and brought into order, and of
    three rows of logits in float32 for each request. In float32 an adapter is merged into copies of
    the weights that it adapts: 4 bytes for each in a layer, and in the head if it has one.
    """
    if not requests:
        return 0
    layer = cached_tokens(args, requests) * cached_per_token(shape, args) // shape.layers
    merged = 0
    if args.use_lora and computed_width(args) == FLOAT32 and not args.load_in_4bit:
        head = shape.vocabulary * shape.hidden * args.train_unembed
        merged = FLOAT32 * (shape.layers * shape.layer + head)
    return merged + max(2 * layer, 3 * FLOAT32 * shape.vocabulary * requests)


def kept_per_token(shape: Shape, args: TrainerArgs) -> int:
    """Return the bytes that one layer keeps of a token for its backward pass.

    In float32: 4·(n·H + 4·I + 2·A + 2·K + heads + 2), where n = 6 if all is trained (of each of the
    two norms its input, what it is scaled from, and its output) and 4 beside an adapter; 4·I are
    the gate, its activation, the other factor and their product; 2·A the queries and the output of
    the attention, 2·K its keys and values, heads its log-sum-exp. An adapter keeps 4·r for each of
    seven matrices, and norms of queries and keys what they are scaled from, 4·(A + K). In bfloat16
    the same counts 2 bytes, but what norms are scaled from is float32: 2·H of the n·H.
    """
    h, i, a, k = shape.hidden, shape.intermediate, shape.queries, shape.keys
    width = computed_width(args)
    norms = 2 if args.use_lora else 4
    kept = width * (norms * h + 4 * i + 2 * a + 2 * k) + FLOAT32 * (2 * h + shape.heads + 2)
    if args.use_lora:
        kept += width * 7 * args.lora_rank
    if shape.norms_heads:
        kept += FLOAT32 * (a + k)
    return kept


def activations(shape: Shape, args: TrainerArgs, tokens: int) -> int:
    """Return the bytes that the forward pass of T tokens keeps.

    T·layers·:func:`kept_per_token`; with ``gradient_checkpointing`` T·layers·w·H, the layers'
    inputs, and one layer's as above. Behind the layers, 3·T·w·H for the last norm.
    """
    width = computed_width(args)
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
    the weight's gradient in the backward pass, 4·V·H, and with ``bf16`` 2·V·H for it rounded and
    2·V·H for the embedding's. It makes them all at once with ``packing = false``: c = T·V, five
    times. A layer's backward pass has 3·T·w·I.
    """
    logits, width = tokens * shape.vocabulary, computed_width(args)
    if not args.packing:
        head = 5 * FLOAT32 * logits
    else:
        chunk = FLOAT32 * min(logits, CHUNK_LOGITS)
        head = 3 * chunk
        if not args.use_lora:
            rounded = 0 if width == FLOAT32 else 2 * width
            weight = (FLOAT32 + rounded) * shape.vocabulary * shape.hidden
            head = max(head, 2 * chunk + weight)
    return max(head, 3 * tokens * width * shape.intermediate)


def computed_width(args: TrainerArgs) -> int:
    """Return w, the bytes of a number that is computed with."""
    return BFLOAT16 if args.bf16 is True else FLOAT32
