"""How much memory a trainer process will need at its peak, from the shape of the model alone.

The peak is in the backward pass of the largest micro-batch of a step, after the first one of the
run: gradients of earlier micro-batches and Adam's moments are there, and all that the forward pass
kept, which :mod:`vf.trainer.learning.memory.activations` counts on the model's own code.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from vf.inference.embedded.contexts import Contexts
from vf.inference.model_files import model_class
from vf.trainer.learning.memory.activations import Kept, kept
from vf.trainer.learning.model.head import CHUNK_LOGITS
from vf.trainer.processes.launch import Sharing
from vf.trainer.settings.config import TrainerArgs

CEILING = 2**16  # tokens in a micro-batch that is found automatically
GRAIN = 256
SHARE = 0.8  # of the free memory, for a micro-batch that is found automatically
FLOAT32, BFLOAT16 = 4, 2
NF4 = 0.5 + 1 / 64 + 4 / (64 * 256)  # a weight, and its share of the scales and of their scales
EIGHT_BITS = 1 + 4 / 256  # a moment, and its share of the scales
CUDA_CONTEXT = 600 * 2**20  # of a process: the context, cuBLAS' workspaces
NOT_SHARED = Sharing()
SHARED_FROM = {"optimizer": 1, "gradients": 2, "weights": 3, "reference": 3, "teacher": 3}
FRAGMENTS = 0.05  # of what PyTorch's allocator holds, in gaps between tensors
# Layers without keys and values: they keep a state, or mix no tokens.
WITHOUT_CACHE = {"linear_attention", "mamba", "conv", "mlp", "moe"}


@dataclass(frozen=True, slots=True)
class Shape:
    """What memory depends on in a model.

    Attributes:
        parameters: All of them; those that two layers share count once.
        text: Those that a text passes: all but a composite's other parts.
        vocabulary: V, tokens that it knows.
        layers: How many.
        hidden: H, its width.
        intermediate: I, the width inside of the MLP.
        queries: A, query heads times their width; of the mean layer.
        keys: K, key heads times their width; of the mean layer.
        attending: Layers with keys and values; the others keep a state, or mix no tokens.
        outside: Parameters of embeddings and the head; once if they are tied.
        largest: Parameters of the largest tensor in a layer.
        build: Makes it in a dtype on the device ``meta``.
        teacher: Parameters of the teacher that is loaded beside it.
    """

    parameters: int
    text: int
    vocabulary: int
    layers: int
    hidden: int
    intermediate: int
    queries: int
    keys: int
    attending: int
    outside: int
    largest: int
    build: Callable[[torch.dtype], Any] = field(repr=False, compare=False)
    teacher: int = 0

    @property
    def layer(self) -> int:
        """Parameters of one layer."""
        return (self.parameters - self.outside) // self.layers

    def kept(self, args: TrainerArgs) -> Kept:
        """Return what its forward pass keeps, and what of it is trained."""
        return kept(self.build, args)

    @classmethod
    def of(cls, config: Any, model: torch.nn.Module) -> Shape:
        """Read it from a model of transformers', on the meta device or another, and its config."""
        text = config.get_text_config()
        queries, keys = _widths(text)
        intermediate = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
        kinds = getattr(text, "layer_types", None) or text.num_hidden_layers * ["full_attention"]
        output: Any = model.get_output_embeddings()  # type: ignore[operator]
        tables = [module for module in model.modules() if isinstance(module, torch.nn.Embedding)]
        outside = {id(module.weight): module.weight.numel() for module in (*tables, output)}
        sizes = {id(parameter): parameter.numel() for parameter in model.parameters()}
        decoder: Any = model.get_decoder()  # type: ignore[operator]
        passed = {id(parameter) for part in (decoder, output) for parameter in part.parameters()}
        return cls(
            sum(sizes.values()),
            sum(sizes[parameter] for parameter in passed),
            text.vocab_size,
            text.num_hidden_layers,
            text.hidden_size,
            intermediate,
            queries,
            keys,
            sum(kind not in WITHOUT_CACHE for kind in kinds),
            sum(outside.values()),
            max(sizes[parameter] for parameter in passed - outside.keys()),
            OnMeta(type(config), repr(config), hasattr(model, "get_image_features"), config),
        )


def _widths(text: Any) -> tuple[int, int]:
    """Return A and K of the mean layer; in some models they differ between layers."""
    # A config refuses to give such a setting; those of its layers have it.
    layers = list(getattr(text, "per_layer_config", None) or [text])
    queries = keys = 0
    for layer in layers:
        heads = layer.num_attention_heads
        width = getattr(layer, "head_dim", None) or layer.hidden_size // heads
        queries += heads * width
        keys += (getattr(layer, "num_key_value_heads", None) or heads) * width
    return queries // len(layers), keys // len(layers)


@dataclass(frozen=True, slots=True)
class OnMeta:
    """Makes a model without weights.

    Two are equal where their configs are, so that what was counted of one holds for the other.

    Attributes:
        kind: The config's class.
        settings: What it is set to.
        sees: Whether it has a vision tower.
        config: The config.
    """

    kind: type
    settings: str
    sees: bool
    config: Any = field(repr=False, compare=False)

    def __call__(self, dtype: torch.dtype) -> Any:
        """Make the model in this precision."""
        with torch.device("meta"):
            return model_class(sees=self.sees).from_config(self.config, dtype=dtype)


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
    - ``reference``: w·parameters, or 4·parameters with a ``reference_update_rate`` below 1, if
      ``reference_model`` is set; over n as the weights are.
    - ``teacher``: w·its parameters, if it is loaded beside the model; over n likewise.
    - ``reference adapter``: an adapter that follows, w·t, or 4·t for an average.
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
        shape: The shape of the model.
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
        "teacher": False,
    }
    averaged = FLOAT32 if args.reference_update_rate < 1.0 else computed_width(args)
    copied = args.reference_update_steps is not None and args.reference_model is None
    moment = EIGHT_BITS if args.optim == "adamw_8bit" else FLOAT32
    whole = sharing.stage >= SHARED_FROM["weights"]
    lasting = {
        "weights": weights(shape, args, shared=whole),
        "gradients": FLOAT32 * trained,
        "optimizer": int(2 * moment * trained),
        "reference": averaged * shape.parameters if args.reference_model else 0,
        "teacher": computed_width(args) * shape.teacher,
    }
    sizes = {
        name: 0 if on_host[name] else size // sharing.over(SHARED_FROM[name])
        for name, size in lasting.items()
    }
    sizes |= {
        "reference adapter": averaged * trained * copied,
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
    sizes |= worst
    if around.cuda:
        moving = sum(sizes.values()) - sizes["key-value cache"]
        sizes["CUDA and fragments"] = CUDA_CONTEXT + int(FRAGMENTS * moving)
    return {name: size for name, size in sizes.items() if size}


def largest_budget(shape: Shape, args: TrainerArgs, free: int, around: Surroundings = ALONE) -> int:
    """Return the most tokens in a micro-batch whose predicted peak is within the free memory.

    It is a multiple of 256 tokens above ``max_seq_len``, at most :data:`CEILING`, and not more than
    a step can have. Where not even ``max_seq_len`` tokens fit, it is ``max_seq_len``.

    Args:
        shape: The shape of the model.
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
    """Return t: the parameters that a text passes (or all), or those of the adapter."""
    if args.use_lora:
        return shape.kept(args).trained
    return shape.parameters if args.train_vision else shape.text


def weights(shape: Shape, args: TrainerArgs, *, shared: bool = False) -> int:
    """Return the bytes of all weights.

    What is frozen beneath an adapter: w·parameters, with ``load_in_4bit`` 0.52 bytes for each in a
    layer. What is trained: w·t to compute with, and with ``bf16`` masters of 4·t
    (:mod:`vf.trainer.learning.sharding.master_weights`), which ``adamw_offload`` keeps in the
    host's memory. Where processes share what is trained, 4·t, rounded when it is :func:`gathered`.
    Here t counts what no text passes, too.
    """
    width = computed_width(args)
    trained = trained_parameters(shape, args) if args.use_lora else shape.parameters
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
    """Return for how many tokens the embedded engine's cache has room."""
    return requests * Contexts(1, args.max_seq_len).tokens


def cached_per_token(shape: Shape, args: TrainerArgs) -> int:
    """Return the bytes that a cache has of a token: a key and a value in every layer with them."""
    return 2 * shape.keys * shape.attending * computed_width(args)


def sampling(shape: Shape, args: TrainerArgs, requests: int) -> int:
    """Return the bytes of the embedded engine's worst moment, beside its cache.

    Three rows of logits in float32 for each request. In float32 an adapter is merged into copies of
    the weights that it adapts: 4 bytes for each in a layer, and in the head if it has one.
    """
    if not requests:
        return 0
    merged = 0
    if args.use_lora and computed_width(args) == FLOAT32 and not args.load_in_4bit:
        head = shape.vocabulary * shape.hidden * args.train_unembed
        merged = FLOAT32 * (shape.layers * shape.layer + head)
    return merged + 3 * FLOAT32 * shape.vocabulary * requests


def activations(shape: Shape, args: TrainerArgs, tokens: int) -> int:
    """Return the bytes that the forward pass of T tokens keeps.

    That of all layers; with ``gradient_checkpointing`` T·w·H for the input of each, and what the
    largest of them keeps. Beside it what is kept before and behind the layers, and by the head:
    T·w·H for its input, and as much for the gradient by it, which is computed in the forward pass
    where the head is not trained. With ``packing = false`` each layer that attends keeps a mask of
    T·w·max_seq_len.
    """
    saved, input_size = shape.kept(args), tokens * computed_width(args) * shape.hidden
    mask = 0 if args.packing else tokens * computed_width(args) * args.max_seq_len
    layers = [part.of(tokens) + mask for part in saved.layers]
    if args.gradient_checkpointing is True:
        inside = len(layers) * input_size + max(layers, default=0)
    else:
        inside = sum(layers)
    head_is_trained = args.train_unembed if args.use_lora else True
    return inside + saved.rest.of(tokens) + (1 if head_is_trained else 2) * input_size


def scratch(shape: Shape, args: TrainerArgs, tokens: int) -> int:
    """Return the bytes of what lives for a moment only, at the worst moment.

    The larger of the head's and a layer's. The head has c = min(T·V, 2²⁵) logits in work: 3·4·c in
    the forward pass (logits, probabilities, their product); where its weight is trained, 2·4·c and
    the weight's gradient in the backward pass, 4·V·H, and with ``bf16`` 2·V·H for it rounded and
    2·V·H for the embedding's. A layer's backward pass has twice what is widest in it, and where all
    is trained the gradient of its largest tensor.
    """
    width, chunk = computed_width(args), FLOAT32 * min(tokens * shape.vocabulary, CHUNK_LOGITS)
    head, layer = 3 * chunk, int(2 * tokens * shape.kept(args).widest)
    if not args.use_lora:
        rounded = 0 if width == FLOAT32 else 2 * width
        weight = (FLOAT32 + rounded) * shape.vocabulary * shape.hidden
        head = max(head, 2 * chunk + weight)
        layer += width * shape.largest
    return max(head, layer)


def computed_width(args: TrainerArgs) -> int:
    """Return w, the bytes of a number that is computed with."""
    return BFLOAT16 if args.bf16 is True else FLOAT32
