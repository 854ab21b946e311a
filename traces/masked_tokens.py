"""A token sequence of a rollout as the engine saw and sampled it, and which of it carries loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from vf.traces.images import Image

NOT_SAMPLED = -1  # the weight version of a token that no model sampled


@dataclass(slots=True)
class Branch:
    """One growing token sequence: exactly what the engine saw and sampled.

    The first five lists have one length, one entry per token, in order, and so has ``supports``
    unless it is empty. A prompt token, a tool response and a closer that we inserted have
    ``loss_mask`` 0, ``logprobs`` 0.0 and ``weight_version`` -1.

    Attributes:
        token_ids: Vocabulary ids.
        loss_mask: 1 where the model sampled the token, else 0.
        logprobs: The engine's natural-log probability of the sampled token, under the
            distribution that it was sampled from (temperature and filters applied).
        turn_index: Zero-based turn in which the token entered the sequence.
        weight_version: Version of the weights that sampled the token.
        experts: Of a mixture whose engine was asked for them, the experts that each token was sent
            to, of all tokens but the last, else empty: the numbers of its k experts in each of L
            layers, as L·k unsigned 16-bit integers, little-endian, layer by layer.
        supports: Which tokens the engine's filters (top-p, top-k, min-p) left to sample this one
            from, as ascending ids; an empty list where they left the whole vocabulary, or where
            the engine does not tell. Empty as a whole if that is so for every token.
        images: The images that the model saw, in order. ``at`` is the place of an image's first
            placeholder among the tokens; the processor says how many it has.
    """

    token_ids: list[int] = field(default_factory=list)
    loss_mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    turn_index: list[int] = field(default_factory=list)
    weight_version: list[int] = field(default_factory=list)
    experts: list[bytes] = field(default_factory=list)
    supports: list[list[int]] = field(default_factory=list)
    images: list[Image] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.token_ids)

    def add_context(self, token_ids: list[int], turn: int, images: Sequence[Image] = ()) -> None:
        """Append tokens that the model did not sample.

        Args:
            token_ids: The tokens.
            turn: Zero-based turn.
            images: The images among them, each with its place in the whole sequence.
        """
        count = len(token_ids)
        self.images += images
        self.token_ids += token_ids
        self.loss_mask += [0] * count
        self.logprobs += [0.0] * count
        self.turn_index += [turn] * count
        self.weight_version += [NOT_SAMPLED] * count
        if self.supports:
            self.supports += [[] for _ in range(count)]

    def add_sampled(
        self,
        token_ids: list[int],
        logprobs: list[float],
        versions: list[int],
        turn: int,
        supports: Sequence[list[int]] = (),
    ) -> None:
        """Append tokens that the model sampled, with the engine's own logprobs.

        Args:
            token_ids: The tokens.
            logprobs: The log-probability of each.
            versions: The version of the weights behind each.
            turn: Zero-based turn.
            supports: The support of each, as in :attr:`supports`, or empty.

        Raises:
            ValueError: If the lists differ in length.
        """
        count = len(token_ids)
        if len(logprobs) != count or len(versions) != count:
            raise ValueError(
                f"{count} sampled tokens, {len(logprobs)} logprobs and {len(versions)} versions"
            )
        if supports and len(supports) != count:
            raise ValueError(f"{count} sampled tokens and {len(supports)} supports")
        if any(supports) and not self.supports:
            self.supports = [[] for _ in self.token_ids]
        if self.supports:
            self.supports += supports or [[] for _ in range(count)]
        self.token_ids += token_ids
        self.loss_mask += [1] * count
        self.logprobs += logprobs
        self.turn_index += [turn] * count
        self.weight_version += versions
