"""How many floating-point operations an update needs, by its shapes.

A weight of a matrix takes part in one multiplication and one addition for each token in the forward
pass, and in as many again for the gradient of its input, and for its own gradient if it is trained:
6·N·T for N trained weights and T tokens (Kaplan et al. 2020, "Scaling Laws for Neural Language
Models", §2.1). The attention's products are counted as in Chowdhery et al. 2022, "PaLM", appendix
B, but only between tokens that see each other. As there, what is computed a second time to save
memory does not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vf.trainer.learning.batches.batch import MicroBatch


@dataclass(frozen=True, slots=True)
class Work:
    """What a micro-batch asks of the model.

    Attributes:
        tokens: T, computed tokens: padding counts, and a shared prefix counts once.
        predictions: Positions that the head runs on.
        pairs: Of a token and one that it attends to.
    """

    tokens: int
    predictions: int
    pairs: int

    @classmethod
    def of(cls, batch: MicroBatch) -> Work:
        """Return what a micro-batch asks, packed or padded as it is."""
        if (tree := batch.tree) is not None:
            pairs = 0
            for segment in tree.segments:
                own = segment.end - segment.start
                pairs += own * (own + 1) // 2 + own * (segment.last - segment.end)
            return cls(len(tree), len(tree.predictors), pairs)
        rows, columns = batch.input_ids.shape
        predictions = int(batch.loss_mask[:, 1:].sum())
        return cls(rows * columns, predictions, rows * columns * (columns + 1) // 2)


@dataclass(frozen=True, slots=True)
class ModelCost:
    """What a dense model asks of the machine. Of a mixture of experts, all experts are counted.

    Attributes:
        weights: Of all matrices but the embedding and the head, adapters included.
        trained: Of these, how many have a gradient.
        head: Weights of the head.
        head_trained: Of these, how many have a gradient.
        attention: Query heads × their width, summed over the layers.
    """

    weights: int
    trained: int
    head: int
    head_trained: int
    attention: int

    @classmethod
    def of(cls, model: Any) -> ModelCost:
        """Return the cost of a causal language model of transformers'."""
        text = model.config.get_text_config()
        head = model.get_output_embeddings().weight
        apart = {id(head), id(model.get_input_embeddings().weight)}
        matrices = [p for p in model.parameters() if p.dim() > 1 and id(p) not in apart]
        width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        return cls(
            weights=sum(p.numel() for p in matrices),
            trained=sum(p.numel() for p in matrices if p.requires_grad),
            head=head.numel(),
            head_trained=head.numel() * head.requires_grad,
            attention=text.num_hidden_layers * text.num_attention_heads * width,
        )

    def forward(self, work: Work, *, adapter: bool = True) -> int:
        """Return the FLOPs of a forward pass.

        Args:
            work: What it is done for.
            adapter: Whether trained weights take part; an adapter does not in the reference's pass.
        """
        weights = self.weights if adapter else self.weights - self.trained
        linear = weights * work.tokens + self.head * work.predictions
        return 2 * linear + 4 * self.attention * work.pairs

    def backward(self, work: Work) -> int:
        """Return the FLOPs of a backward pass."""
        own = 2 * (self.trained * work.tokens + self.head_trained * work.predictions)
        return self.forward(work) + 4 * self.attention * work.pairs + own
