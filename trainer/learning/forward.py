"""From micro-batches to log-probabilities: packed where the model can, padded where it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch

from vf.trainer.learning.attention import switched_on
from vf.trainer.learning.batch import MicroBatch
from vf.trainer.learning.head import head_logprobs, pick
from vf.trainer.learning.prefix_tree import PrefixTree
from vf.trainer.learning.sharding import Copies

How = Literal["packed", "own_head", "padded"]


def token_logprobs(
    model: Any, batch: MicroBatch, temperature: float, *, entropy_gradient: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the learner's log-probability and entropy at every trained token, on padded rows.

    Predictions are shifted onto the tokens that they predict: the logits at position t − 1 give the
    probability of token t. For packed rows, :func:`~vf.trainer.learning.prefix_tree.build_tree`
    does so.

    Args:
        model: A causal language model.
        batch: B rows of L tokens.
        temperature: The sampler's; logits are divided by it.
        entropy_gradient: Whether the entropy carries a gradient.

    Returns:
        log p and entropy in nats, both float32 ``[N]`` for the N trained tokens in row-major order.
    """
    trained = batch.loss_mask[:, 1:]
    columns = trained.any(0).nonzero()[:, 0]  # positions whose prediction any row needs
    logits = model(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask,
        use_cache=False,
        logits_to_keep=columns,
    ).logits
    logits = logits[trained[:, columns]].float() / temperature
    logprobs = torch.log_softmax(logits, dim=-1)
    targets = batch.input_ids[:, 1:][trained]
    with nullcontext() if entropy_gradient else torch.no_grad():
        entropy = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.gather(1, targets[:, None])[:, 0], entropy


def tree_logprobs(
    model: Any,
    batch: MicroBatch,
    tree: PrefixTree,
    temperature: float,
    *,
    entropy_gradient: bool = False,
    own_head: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same as :func:`token_logprobs`, from the packed tokens.

    Args:
        model: A causal language model of transformers', attending along prefix trees.
        batch: B rows of L tokens.
        tree: The same tokens, packed.
        temperature: The sampler's; logits are divided by it.
        entropy_gradient: Whether the entropy carries a gradient.
        own_head: Ask the model for logits, all at once, rather than its last layer for parts.
    """
    told = {
        "input_ids": tree.token_ids[None],
        "position_ids": tree.position_ids[None],
        "use_cache": False,
        "vf_segments": tree.segments,
        "vf_longest": tree.longest,
    }
    targets = batch.input_ids[batch.loss_mask]
    if own_head:
        logits = model(**told, logits_to_keep=tree.predictors).logits[0].float() / temperature
        return pick(logits, tree.rows, targets, entropy_gradient=entropy_gradient)
    hidden = model.base_model(**told).last_hidden_state[0, tree.predictors]
    return head_logprobs(
        model.get_output_embeddings(),
        hidden,
        tree.rows,
        targets,
        temperature,
        entropy_gradient=entropy_gradient,
    )


class Forward:
    """The way to log-probabilities that suits one model.

    Args:
        model: A causal language model of transformers', with adapters inside its layers if any.
        how: ``packed``; ``own_head``, packed too, but with logits as the model makes them, of all
            trained tokens at once; or ``padded``.
        sharding: How the trainer processes hold the model.
    """

    def __init__(self, model: Any, how: How, sharding: Copies | None = None) -> None:
        self.model = model
        self.how = how
        self.run = (sharding or Copies()).run

    @contextmanager
    def active(self) -> Iterator[None]:
        """Prepare the model for calls, their backward passes included."""
        with nullcontext() if self.how == "padded" else switched_on(self.model):
            yield

    def __call__(
        self, batch: MicroBatch, temperature: float, *, entropy_gradient: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log p and entropy of trained tokens; see :func:`token_logprobs`."""
        if batch.tree is None or self.how == "padded":
            padded: tuple[torch.Tensor, torch.Tensor] = self.run(
                token_logprobs, self.model, batch, temperature, entropy_gradient=entropy_gradient
            )
            return padded
        found: tuple[torch.Tensor, torch.Tensor] = self.run(
            tree_logprobs,
            self.model,
            batch,
            batch.tree,
            temperature,
            entropy_gradient=entropy_gradient,
            own_head=self.how == "own_head",
        )
        return found
