"""Log-probabilities from hidden states, a chunk at a time: the vocabulary is wide.

Logits exist for the positions that predict trained tokens only, and for no longer than their chunk
is at work; the backward pass computes them again where it needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.utils.checkpoint import checkpoint

from vf.inference.invariant import ROWS
from vf.trainer.learning.batches.sampling_support import Supports
from vf.trainer.learning.batches.top_tokens import ForwardKl, Likeliest
from vf.trainer.learning.model.precision import ExactHead, logits_of

LEAST = -1e30  # nats, in place of -inf
CHUNK_LOGITS = 2**25  # in one chunk, over all its rows: 128 MiB in float32
Chunk: TypeAlias = tuple[slice, slice, torch.Tensor]  # see _chunks


def layers_of(model: Any) -> Any:
    """Return the part of a causal language model that makes hidden states: all but its head.

    It is transformers' ``base_model``, or, where that is the model itself (Llama 4), the one model
    that its decoder holds.
    """
    from transformers import PreTrainedModel

    if model.base_model is not model:
        return model.base_model
    if (decoder := model.get_decoder()) is not model:
        return layers_of(decoder)
    inner = [child for child in model.children() if isinstance(child, PreTrainedModel)]
    return inner[0] if inner else model


class ModelHead:
    """All that a model does between its last layer and its logits, for any hidden states.

    Models scale their logits, cap them, or project the hidden states first. None of it is known
    here by name: it is the model's own forward pass, in which its layers give what they are given.

    Args:
        model: A causal language model of transformers'.
        output: The type of what its layers (:func:`layers_of`) return.

    Attributes:
        out_features: The size of the vocabulary.
    """

    def __init__(self, model: Any, output: type) -> None:
        self.model = model
        self.output = output
        self.out_features: int = model.config.get_text_config().vocab_size

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits ``[P, V]`` of hidden states ``[P, H]``.

        Raises:
            ValueError: If the model does not call these layers for its hidden states.
        """
        called = False

        def given(*args: Any, **options: Any) -> Any:
            nonlocal called
            called = True
            return self.output(last_hidden_state=hidden[None])

        base = layers_of(self.model)
        before = vars(base).get("forward")
        base.forward = given
        try:
            ids = torch.zeros(1, len(hidden), dtype=torch.long, device=hidden.device)
            # Without hooks around the model: who shards it has gathered what is needed.
            logits: torch.Tensor = self.model.forward(input_ids=ids, use_cache=False).logits[0]
        finally:
            if before is None:
                del base.forward
            else:
                base.forward = before
        if not called:
            raise ValueError(f"{type(self.model).__name__} does not call its layers")
        return logits


class Predicted(NamedTuple):
    """What a model says of N tokens.

    Attributes:
        logprobs: log p in nats, float32 ``[N]``.
        entropy: The entropy of the distribution there, in nats, float32 ``[N]``.
        teacher_kl: KL(teacher ‖ model) there, in nats, float32 ``[N]``; None if no teacher's
            tokens were given.
        likeliest: The model's likeliest tokens there; None unless they were asked for.
    """

    logprobs: torch.Tensor
    entropy: torch.Tensor
    teacher_kl: torch.Tensor | None = None
    likeliest: Likeliest | None = None


def head_logprobs(
    head: Any,
    hidden: torch.Tensor,
    rows: torch.Tensor,
    targets: torch.Tensor,
    temperature: float,
    supports: Supports | None = None,
    *,
    entropy_gradient: bool = False,
    taught: Likeliest | None = None,
    likeliest: int = 0,
    chunk_logits: int | None = None,
    most: Callable[[int], int] = int,
) -> Predicted:
    """Return log-probabilities and entropies of tokens, and what a teacher is asked or has said.

    Args:
        head: From hidden states to logits: a module, with an adapter or a bias if it has them, or a
            :class:`ModelHead`.
        hidden: ``[P, H]``, what the P predictions are made from.
        rows: int64 ``[N]``, at which of them each token is predicted; one may predict several.
        targets: int64 ``[N]``, the tokens.
        temperature: Logits are divided by it.
        supports: The supports of the tokens; None for the whole vocabulary. Each token's logits are
            copied then, so a chunk has half as many.
        entropy_gradient: Whether the entropy carries a gradient.
        taught: A teacher's likeliest tokens at each of the N, to be compared with. Logits are
            copied then, too, as they are with the next.
        likeliest: The number of likeliest tokens to return; without a gradient.
        chunk_logits: Most logits at once; :data:`CHUNK_LOGITS` by default.
        most: From this process's number of chunks to how many it is to compute, empty ones
            included: where each call of the head gathers it, all processes must call it as often.
    """
    order = torch.argsort(rows, stable=True)
    sorted_rows, sorted_targets = rows[order], targets[order]
    width = getattr(head, "out_features", None)  # the weight may be spread over processes
    chunk_logits = CHUNK_LOGITS if chunk_logits is None else chunk_logits
    if supports is not None or taught is not None or likeliest:
        chunk_logits //= 2
    if supports is not None:
        supports = supports.take(order)
    if taught is not None and len(rows):
        taught = taught.by_row(rows, len(hidden))
    step = max(1, chunk_logits // (width if isinstance(width, int) else 2**17))
    step = step - step % ROWS if step > ROWS else step
    plain = type(head) in (torch.nn.Linear, ExactHead) and head.bias is None
    plain = plain and not (head._forward_hooks or head._forward_pre_hooks)
    if plain and supports is None and not likeliest:
        apply: Any = _LinearHead.apply
        given = (hidden, head.weight, sorted_rows, sorted_targets, temperature, step)
        held = (None, None) if taught is None else (taught.ids, taught.logprobs)
        predicted = Predicted(*apply(*given, entropy_gradient, *held))
    else:
        chunks = _chunks(len(hidden), step, sorted_rows, most)
        how = {"gradient": entropy_gradient, "likeliest": likeliest}
        predicted = _any_head(
            head, hidden, sorted_targets, temperature, supports, taught, chunks, how
        )
    back = torch.argsort(order)
    kl, top = predicted.teacher_kl, predicted.likeliest
    return Predicted(
        predicted.logprobs[back],
        predicted.entropy[back],
        None if kl is None or taught is None else kl[back],
        None if top is None else top.take(back),
    )


def pick(
    logits: torch.Tensor,
    rows: torch.Tensor,
    targets: torch.Tensor,
    supports: Supports | None,
    taught: Likeliest | None = None,
    *,
    gradient: bool,
    likeliest: int = 0,
) -> Predicted:
    """Return what there is to say of targets ``[N]``, from logits ``[P, V]``.

    Args:
        logits: float32, over the temperature.
        rows: The rows, described in :func:`head_logprobs` like all other arguments.
        targets: See there.
        supports: See there.
        taught: The teacher's likeliest tokens at each of the P rows.
        gradient: Whether the entropy carries one.
        likeliest: See there.
    """
    kl = top = None
    normalised: Any = Normalised.apply
    whole = supports is None or taught is not None or likeliest > 0
    logprobs = normalised(logits.float()) if whole else logits
    if taught is not None:
        apply: Any = ForwardKl.apply
        kl = apply(logprobs, taught.ids, taught.logprobs)[rows]
    if likeliest:
        top = Likeliest.of(logprobs, likeliest).take(rows)
    if supports is not None:
        logprobs = normalised(supports.cut(logits[rows]))
        rows = torch.arange(len(rows), device=rows.device)
    with nullcontext() if gradient else torch.no_grad():
        # A logarithm of -inf has no part in it: 0 · -inf is NaN.
        finite = logprobs if supports is None else logprobs.clamp(min=LEAST)
        entropy = -(logprobs.exp() * finite).sum(-1)
    return Predicted(logprobs[rows, targets], entropy[rows], kl, top)


class Normalised(torch.autograd.Function):
    """``log_softmax`` over the last dimension, with the bits that the engine has."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor) -> torch.Tensor:
        logprobs = logits - logits.logsumexp(-1, keepdim=True)
        ctx.save_for_backward(logprobs)
        return logprobs

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        logprobs: torch.Tensor = ctx.saved_tensors[0]
        return grads[0] - logprobs.exp() * grads[0].sum(-1, keepdim=True)


def _chunks(
    count: int, step: int, rows: torch.Tensor, most: Callable[[int], int] = int
) -> Iterator[Chunk]:
    """Yield runs of predictions, the tokens that they predict, and those tokens' rows in the run.

    ``rows`` are sorted.
    """
    edges = [*range(0, max(count, 1), step), count]  # of nothing, one empty run
    edges += [count] * (most(len(edges) - 1) - (len(edges) - 1))
    bounds = torch.searchsorted(rows, torch.tensor(edges, device=rows.device)).tolist()
    for index in range(len(edges) - 1):
        tokens = slice(bounds[index], bounds[index + 1])
        yield slice(edges[index], edges[index + 1]), tokens, rows[tokens] - edges[index]


def _any_head(
    head: Callable[[torch.Tensor], torch.Tensor],
    hidden: torch.Tensor,
    targets: torch.Tensor,
    temperature: float,
    supports: Supports | None,
    taught: Likeliest | None,
    chunks: Iterator[Chunk],
    how: dict[str, Any],
) -> Predicted:
    """Do it with any module: autograd computes each chunk again in the backward pass."""

    def one(hidden: torch.Tensor, rows: torch.Tensor, run: slice, tokens: slice) -> Predicted:
        logits = head(hidden).float() / temperature
        own = None if supports is None else supports.take(indices[tokens])
        theirs = None if taught is None else taught.take(run)
        return pick(logits, rows, targets[tokens], own, theirs, **how)

    indices = torch.arange(len(targets), device=targets.device)
    parts = [
        checkpoint(one, hidden[run], own, run, tokens, use_reentrant=False)
        for run, tokens, own in chunks
    ]
    top = [part.likeliest for part in parts]
    return Predicted(
        torch.cat([part.logprobs for part in parts]),
        torch.cat([part.entropy for part in parts]),
        None if taught is None else torch.cat([part.teacher_kl for part in parts]),
        Likeliest.joined(top) if how["likeliest"] else None,
    )


class _LinearHead(torch.autograd.Function):
    """The same with a plain matrix ``[V, H]``, in place and with the gradient by hand.

    With z the logits over the temperature, p = softmax(z) and g the gradient of the loss by a log p
    at this position, that by z is g·(one-hot − p): linear in g. So where only the hidden state
    needs a gradient, p·W is worth keeping, and nothing is computed twice. With a teacher, that of
    the divergence is p − t (:mod:`vf.trainer.learning.batches.top_tokens`), and (p − t)·W is kept,
    too.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        rows: torch.Tensor,
        targets: torch.Tensor,
        temperature: float,
        step: int,
        entropy_gradient: bool,
        ids: torch.Tensor | None,
        teacher_logprobs: torch.Tensor | None,
    ) -> tuple[torch.Tensor, ...]:
        logprobs = hidden.new_empty(len(rows), dtype=torch.float32)
        entropy, kl = torch.empty_like(logprobs), torch.zeros_like(logprobs)
        taught = (
            None if ids is None or teacher_logprobs is None else Likeliest(ids, teacher_logprobs)
        )
        again = ctx.needs_input_grad[1] or entropy_gradient
        keep = ctx.needs_input_grad[0] and not again
        expected = torch.empty_like(hidden) if keep else None  # p·W
        pulls = torch.empty_like(hidden) if keep and taught is not None else None  # (p − t)·W
        for run, tokens, own in _chunks(len(hidden), step, rows):
            z = _log_softmax(hidden[run], weight, temperature)
            logprobs[tokens] = z[own, targets[tokens]]
            p = z.exp()
            entropy[tokens] = -torch.linalg.vecdot(p, z)[own]
            if expected is not None:
                expected[run] = p.to(weight.dtype) @ weight
            if taught is not None and len(rows):
                theirs = taught.take(run)
                kl[tokens] = theirs.kl(z)[own]
                if pulls is not None:
                    pulls[run] = p.sub_(theirs.target(p)).to(weight.dtype) @ weight
            del z, p  # before the next chunk's are made
        ctx.save_for_backward(hidden, weight, rows, targets, expected, pulls, ids, teacher_logprobs)
        ctx.temperature, ctx.step, ctx.entropy_gradient = temperature, step, entropy_gradient
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return logprobs, entropy, kl

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, rows, targets, expected, pulls, *held = ctx.saved_tensors
        taught = None if held[0] is None or not len(rows) else Likeliest(*held)
        none = (None,) * 7
        g, pull = grads[0] / ctx.temperature, grads[2] / ctx.temperature
        if expected is not None:
            total = g.new_zeros(len(hidden)).index_add_(0, rows, g)
            d_hidden = (-total[:, None] * expected).to(hidden.dtype)
            d_hidden.index_add_(0, rows, g[:, None].to(hidden.dtype) * weight[targets])
            if pulls is not None:
                pulled = g.new_zeros(len(hidden)).index_add_(0, rows, pull)
                d_hidden += (pulled[:, None] * pulls).to(hidden.dtype)
            return d_hidden, None, *none
        e = grads[1] / ctx.temperature if ctx.entropy_gradient else None
        d_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        # In float32, for the parts of many chunks are added up in it.
        precision = torch.promote_types(weight.dtype, torch.float32)
        needs_weight = ctx.needs_input_grad[1]
        d_weight = torch.zeros_like(weight, dtype=precision) if needs_weight else None
        for run, tokens, own in _chunks(len(hidden), ctx.step, rows):
            z = _log_softmax(hidden[run], weight, ctx.temperature)
            count = len(z)
            by_row = -g.new_zeros(count).index_add_(0, own, g[tokens])
            drawn = None
            if taught is not None:
                drawn = z.exp()
                drawn.sub_(taught.take(run).target(drawn))
                drawn.mul_(g.new_zeros(count).index_add_(0, own, pull[tokens])[:, None])
            if e is None:
                dz = z.exp_().mul_(by_row[:, None])
            else:  # the entropy's gradient by z is −p·(log p + entropy)
                p = z.exp()
                bonus = g.new_zeros(count).index_add_(0, own, e[tokens])
                h = -torch.linalg.vecdot(p, z)
                dz = z.add_(h[:, None]).mul_(-bonus[:, None]).add_(by_row[:, None]).mul_(p)
            dz.index_put_((own, targets[tokens]), g[tokens], accumulate=True)
            if drawn is not None:
                dz += drawn
            dz = dz.to(weight.dtype)
            if d_hidden is not None:
                d_hidden[run] = dz @ weight
            if d_weight is not None:
                if d_weight.dtype == dz.dtype:
                    d_weight.addmm_(dz.T, hidden[run])
                else:
                    d_weight.add_(dz.T @ hidden[run])
            del z, dz, drawn
        if d_weight is not None:
            d_weight = d_weight.to(weight.dtype)
        return d_hidden, d_weight, *none


def _log_softmax(hidden: torch.Tensor, weight: torch.Tensor, temperature: float) -> torch.Tensor:
    z = logits_of(hidden, weight)
    if temperature != 1.0:
        z.div_(temperature)
    return z.sub_(z.logsumexp(-1, keepdim=True))
