"""From micro-batches to log-probabilities: packed where the model can, padded where it cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal, NamedTuple

import torch
from torch.nn.functional import pad

from vf.inference.embedded.adapters import LoraLayers
from vf.inference.embedded.sight import Sight
from vf.inference.invariant import missing, one_thread
from vf.inference.routers import Forcing
from vf.trainer.learning.attention.tree_attention import switched_on
from vf.trainer.learning.batches.batch import MicroBatch
from vf.trainer.learning.batches.top_tokens import Likeliest
from vf.trainer.learning.model.head import ModelHead, Predicted, head_logprobs, layers_of, pick
from vf.trainer.learning.model.merged_lora import merged
from vf.trainer.learning.model.recurrent_layers import RowsApart
from vf.trainer.learning.sharding.copies import Copies

How = Literal["packed", "padded"]
# The head's matrix in chunks; all that the model does to hidden states, in chunks; or the model's
# own logits of all trained tokens at once.
Head = Literal["linear", "model", "whole"]


class Predictions(NamedTuple):
    """What a model says of a micro-batch with N trained and M observed tokens, in row-major order.

    Attributes:
        logprobs: log p of the trained tokens in nats, float32 ``[N]``.
        entropy: The entropy of the distribution there, in nats, float32 ``[N]``.
        observed: log p of the observed tokens at temperature 1, float32 ``[M]``; None unless they
            carry loss and were asked for.
        teacher_kl: KL(teacher ‖ model) at the trained tokens, in nats, float32 ``[N]``; 0 if the
            batch has no teacher's likeliest tokens, and None unless it was asked for.
        likeliest: The model's likeliest tokens at the trained ones; None unless asked for.
    """

    logprobs: torch.Tensor
    entropy: torch.Tensor
    observed: torch.Tensor | None = None
    teacher_kl: torch.Tensor | None = None
    likeliest: Likeliest | None = None


def token_logprobs(
    model: Any,
    batch: MicroBatch,
    temperature: float,
    *,
    packed: bool = False,
    head: Head = "whole",
    entropy_gradient: bool = False,
    deterministic: bool = False,
    observed: bool = False,
    taught: bool = False,
    likeliest: int = 0,
    most: Callable[[int], int] = int,
    sight: Sight | None = None,
) -> Predictions:
    """Return the learner's log-probability and entropy at every trained token.

    Predictions are shifted onto the tokens that they predict: the logits at position t − 1 give the
    probability of token t. For packed rows,
    :func:`~vf.trainer.learning.attention.prefix_tree.build_tree` does so.

    Args:
        model: A causal language model of transformers'; attending along prefix trees if packed.
        batch: B rows of L tokens.
        temperature: The sampler's; logits are divided by it.
        packed: Whether the model runs on ``batch.tree``, or on the padded rows.
        head: The way from hidden states to logits; see :class:`Forward`.
        entropy_gradient: Whether the entropy carries a gradient.
        deterministic: Whether to compute as the engine does; see :mod:`vf.inference.invariant`.
        observed: Whether to predict the batch's observations, too.
        taught: Whether to compare with the batch's likeliest tokens, those of a teacher.
        likeliest: The number of likeliest tokens to return.
        most: See :func:`~vf.trainer.learning.model.head.head_logprobs`.
        sight: The model's way to see the batch's images, if it has any.

    Returns:
        log p and entropy of the N trained tokens, of the distribution over ``batch.supports`` where
        a token has one; and what else was asked for.
    """
    given: dict[str, Any] = {"use_cache": False}
    masks = [batch.loss_mask]
    if observed:
        weights = batch.observation_weights
        masks.append(torch.zeros_like(masks[0]) if weights is None else weights > 0)
    # Of each mask's tokens: rows and columns of the hidden states that they are predicted from, and
    # which of these predicts each of them.
    selections: list[tuple[Any, torch.Tensor]]
    if packed:
        tree = batch.tree
        assert tree is not None
        extra = missing(len(tree.token_ids)) if deterministic else 0
        ids, positions = pad(tree.token_ids, (0, extra)), pad(tree.position_ids, (0, extra))
        given |= {"input_ids": ids[None], "position_ids": positions[None]}
        given["attention_mask"] = torch.ones_like(ids)[None]  # see `attending`
        given |= {"vf_segments": tree.segments, "vf_longest": tree.longest}
        given |= {"vf_positions": positions, "vf_deterministic": deterministic}
        both = (tree.predictors, tree.rows), (tree.observers, tree.observed_rows)
        selections = []
        for columns, rows in both[: len(masks)]:
            columns = pad(columns, (0, missing(len(columns)) if deterministic else 0))
            selections.append(((torch.zeros_like(columns), columns), rows))
    else:
        given |= {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
        if batch.images and sight is not None:
            given |= sight.whole(batch.input_ids[0].tolist(), batch.images)
        indices = [mask[:, 1:].nonzero(as_tuple=True) for mask in masks]
        selections = [(pair, torch.arange(len(pair[0]), device=pair[0].device)) for pair in indices]
    if head == "whole":
        predicting: Any = torch.cat([predictors[1] for predictors, _ in selections])
        columns = predicting.unique()
        logits = model(**given, logits_to_keep=columns).logits
    else:
        output = layers_of(model)(**given)
        linear = model.get_output_embeddings() if head == "linear" else None
        apply = linear or ModelHead(model, type(output))
    predictions: list[Predicted] = []
    for mask, (predictors, rows) in zip(masks, selections, strict=True):
        targets, first = batch.input_ids[mask], not predictions
        heat, gradient = temperature if first else 1.0, entropy_gradient and first
        supports = batch.supports if first else None  # what is observed was sampled by nobody
        theirs, count = batch.likeliest if taught and first else None, likeliest if first else 0
        if head == "whole":
            own = logits[predictors[0], torch.searchsorted(columns, predictors[1])].float()
            if theirs is not None:
                theirs = theirs.by_row(rows, len(own))
            of = own / heat, rows, targets, supports, theirs
            predictions.append(pick(*of, gradient=gradient, likeliest=count))
        else:
            hidden = output.last_hidden_state[predictors]
            how: dict[str, Any] = {
                "entropy_gradient": gradient,
                "taught": theirs,
                "likeliest": count,
            }
            answer = head_logprobs(apply, hidden, rows, targets, heat, supports, **how, most=most)
            predictions.append(answer)
    trained, seen = predictions[0], predictions[1].logprobs if len(predictions) > 1 else None
    kl = trained.teacher_kl
    if taught and kl is None:  # ranks that compute together have as many results with a gradient
        kl = trained.logprobs.clamp(0.0, 0.0)
    return Predictions(trained.logprobs, trained.entropy, seen, kl, trained.likeliest)


class Forward:
    """The way to log-probabilities that suits one model.

    Args:
        model: A causal language model of transformers', with adapters inside its layers if any.
        how: ``packed`` or ``padded``.
        head: The way from hidden states to logits: ``linear``, by the head's matrix, a chunk at a
            time; ``model``, by whatever the model does to them, a chunk at a time; or ``whole``,
            the model's own forward pass, with the logits of all trained tokens at once.
        sharding: The way in which the trainer processes hold the model.
        deterministic: See :func:`token_logprobs`.

    Attributes:
        forcing: Has the routers use the experts of a micro-batch, or compares them; None to ignore
            them.
        likeliest: How many of the likeliest tokens to return of each trained one.
        sight: The way to see images; None where there are none.
    """

    def __init__(
        self,
        model: Any,
        how: How,
        head: Head = "whole",
        sharding: Copies | None = None,
        *,
        deterministic: bool = False,
    ) -> None:
        self.model = model
        self.how = how
        self.head = head
        self.deterministic = deterministic
        self._lora = LoraLayers(model) if deterministic else None
        self.rows = RowsApart(model) if how == "packed" else None
        sharding = sharding or Copies()
        self.run, self._most = sharding.run, sharding.most_calls
        self.forcing: Forcing | None = None
        self.likeliest = 0
        self.sight: Sight | None = None

    @contextmanager
    def active(self) -> Iterator[None]:
        """Prepare the model for calls, their backward passes included."""
        if self.rows is None:
            yield
        else:
            threads = one_thread() if self.deterministic else nullcontext()
            lora = nullcontext() if self._lora is None else merged(self._lora)
            with switched_on(self.model), self.rows.active(), threads, lora:
                yield

    @property
    def apart(self) -> bool:
        """Whether some layers compute all tokens of every sequence, shared or not."""
        return self.rows is not None and bool(self.rows.mixers)

    def follow(self, how: Literal["off", "compare", "replay"]) -> None:
        """Use the experts of micro-batches as ``trainer.args.router_replay`` says."""
        if how != "off":
            self.forcing = Forcing(self.model, force=how == "replay")

    @property
    def compared(self) -> tuple[int, int]:
        """How many choices of experts the last call compared, and in how many they differed."""
        return (0, 0) if self.forcing is None else self.forcing.take_counts()

    def __call__(
        self,
        batch: MicroBatch,
        temperature: float,
        *,
        entropy_gradient: bool = False,
        observed: bool = False,
        taught: bool = False,
    ) -> Predictions:
        """Return log p and entropy of trained tokens; see :func:`token_logprobs`."""
        if self.rows is not None:
            self.rows.tree = batch.tree
        if self.forcing is not None:
            self.forcing.use(self._experts(batch))
        predictions: Predictions = self.run(
            token_logprobs,
            self.model,
            batch,
            temperature,
            packed=self.how == "packed" and batch.tree is not None,
            head=self.head,
            entropy_gradient=entropy_gradient,
            deterministic=self.deterministic,
            observed=observed,
            taught=taught,
            likeliest=self.likeliest,
            most=self._most,
            sight=self.sight,
        )
        return predictions

    def _experts(self, batch: MicroBatch) -> torch.Tensor | None:
        if self.how == "packed" and batch.tree is not None:
            return batch.tree.experts
        return None if batch.experts is None else batch.experts.flatten(0, 1)
