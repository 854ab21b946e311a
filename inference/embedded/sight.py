"""Images in the prompts of requests, for the scheduler.

A placeholder token of an image is known by a *key* in place of its id: a negative number made of
the image's hash and the place among its features. So what tells contexts apart, ids and pixels, is
one list of numbers, and two prompts share no more than what is the same in both.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import torch

from vf.inference.rendering.vision import Pixels, Vision
from vf.runtime.errors import EngineError
from vf.traces.images import Image

_ROWS = 2**24  # more than the features of any image
_IN_BOTH_DIRECTIONS = ("gemma3",)  # types of models in which an image's tokens see one another


@dataclass(slots=True, eq=False)
class Shown:
    """What one request sees.

    Attributes:
        keys: The prompt's ids, with keys in the places of images.
        pixels: The images, by number, in order.
        positions: Rotary positions of the prompt's tokens, int64 ``[3, P]``; None for 0, 1, 2, ...
        delta: How much less than its place the position of each token behind the prompt is.
        features: What the model has computed of images, by number: ``[F, D]`` for the embeddings,
            and for each layer that gets more.
    """

    keys: list[int]
    pixels: dict[int, Pixels]
    positions: torch.Tensor | None = None
    delta: int = 0
    features: dict[int, list[torch.Tensor]] = field(default_factory=dict)


class Sight:
    """Computes what a model makes of images.

    Args:
        model: One of transformers' models that see.
        vision: Its processor.
    """

    def __init__(self, model: Any, vision: Vision) -> None:
        self._model = model
        self._vision = vision
        self._inputs = inspect.signature(model.get_image_features).parameters.keys()
        self._positions: Any = getattr(model.base_model, "get_rope_index", None)
        self._both = model.config.model_type in _IN_BOTH_DIRECTIONS
        self._one_tensor = False  # whether the model takes the features of all images in one

    def read(self, prompt_ids: Sequence[int], images: Sequence[Image]) -> Shown:
        """Return what a request sees.

        Raises:
            EngineError: If an image is not where it is said to be.
            ConfigError: If an image cannot be read.
        """
        token = self._vision.token_id
        keys, pixels = list(prompt_ids), {}
        for image in images:
            number = int(image.sha256, 16)
            pixels[number] = read = self._vision.pixels(image)
            index = image.at
            for row in range(read.count):
                while 0 <= index < len(keys) and keys[index] != token:
                    index += 1
                if not 0 <= index < len(keys) or (not row and index != image.at):
                    raise EngineError(
                        f"the prompt has no {read.count} placeholders at {image.at} for an image"
                    )
                keys[index] = -1 - (number * _ROWS + row)
        shown = Shown(keys, pixels)
        if self._positions is not None:
            self._find_positions(shown, prompt_ids, [int(image.sha256, 16) for image in images])
        return shown

    def _find_positions(self, shown: Shown, prompt_ids: Sequence[int], numbers: list[int]) -> None:
        """Find the rotary positions, which are the model's own: those of an image have two axes."""
        grids = [shown.pixels[number].inputs["image_grid_thw"] for number in numbers]
        positions, deltas = self._positions(
            input_ids=torch.tensor([prompt_ids]),
            mm_token_type_ids=torch.tensor([[int(key < 0) for key in shown.keys]]),
            image_grid_thw=torch.cat(grids),
        )
        shown.positions, shown.delta = positions[:, 0], int(deltas)

    def cut(self, todo: Sequence[int], count: int) -> int:
        """Return with how many of its first ``count`` tokens a request is in a pass, at least 1.

        Where an image's tokens see one another, they are in one pass.
        """
        if not self._within(todo, count):
            return count
        return self.before(todo, count) or next(
            (index for index in range(count, len(todo)) if todo[index] >= 0), len(todo)
        )

    def before(self, keys: Sequence[int], count: int) -> int:
        """Return how many of the first ``count`` tokens do not end within an image."""
        if self._within(keys, count):
            while count and keys[count - 1] < 0:
                count -= 1
        return count

    def _within(self, keys: Sequence[int], count: int) -> bool:
        return self._both and 0 < count < len(keys) and keys[count - 1] < 0 and keys[count] < 0

    def ends(self, keys: Sequence[int], past: int) -> list[int]:
        """Return behind which key each token sees nothing; empty where that is itself.

        Args:
            keys: A request's tokens in a pass.
            past: Number of its tokens before these.
        """
        if not self._both or min(keys) >= 0:
            return []
        ends: list[int] = []
        for seen, run in groupby(keys, lambda key: key < 0):
            first, count = past + len(ends), len([*run])
            ends += [first + count] * count if seen else range(first + 1, first + count + 1)
        return ends

    def arguments(self, parts: Iterable[tuple[Sequence[int], Shown | None]]) -> dict[str, Any]:
        """Return what the model gets of images in a pass, beside the ids.

        Args:
            parts: The tokens of each request in the pass, and what it sees.
        """
        pieces: list[list[torch.Tensor] | None] = []  # None for a placeholder that is a mere token
        for keys, shown in parts:
            placeholders = (key for key in keys if key < 0 or key == self._vision.token_id)
            for number, run in groupby(placeholders, _number):
                rows = [_row(key) for key in run]
                if number is None or shown is None:
                    pieces += [None] * len(rows)
                else:
                    features = self._features(shown, number)
                    index = torch.tensor(rows, device=features[0].device)
                    pieces.append([layer[index] for layer in features])
        first = next((piece for piece in pieces if piece is not None), None)
        if first is None:
            return {}
        plain = [torch.zeros_like(layer[:1]) for layer in first]
        embedding = self._model.get_input_embeddings()
        token = torch.tensor([self._vision.token_id], device=plain[0].device)
        plain[0] = embedding(token).to(plain[0].dtype)
        whole = [
            torch.cat(layer) for layer in zip(*(piece or plain for piece in pieces), strict=True)
        ]
        output = SimpleNamespace(
            pooler_output=whole[0] if self._one_tensor else (whole[0],),
            deepstack_features=[(layer,) for layer in whole[1:]],
        )
        return {"mm_encoder_outputs": {"image": output}}

    def whole(self, token_ids: Sequence[int], images: Sequence[Image]) -> dict[str, Any]:
        """Return what the model gets of images in a pass over one whole sequence.

        Args:
            token_ids: The sequence.
            images: Its images, with their places in it.

        Raises:
            EngineError: If an image is not where it is said to be.
            ConfigError: If an image cannot be read.
        """
        shown = self.read(token_ids, images)
        given = self.arguments([(shown.keys, shown)])
        device = self._model.device
        if shown.positions is not None:
            given["position_ids"] = shown.positions[:, None].to(device)
        if self._both:
            kinds = [int(key < 0) for key in shown.keys]
            given["token_type_ids"] = torch.tensor([kinds], device=device)
        return given

    def ids(self, keys: Sequence[int]) -> list[int]:
        """Return the token ids of keys."""
        return [key if key >= 0 else self._vision.token_id for key in keys]

    def _features(self, shown: Shown, number: int) -> list[torch.Tensor]:
        features = shown.features.get(number)
        if features is None:
            features = shown.features[number] = self._compute(shown.pixels[number])
        return features

    def _compute(self, pixels: Pixels) -> list[torch.Tensor]:
        """Return the features of one image, ``[F, D]`` each."""
        device, dtype = self._model.device, self._model.dtype
        inputs = {
            name: value.to(device, dtype if value.is_floating_point() else value.dtype)
            for name, value in pixels.inputs.items()
            if name in self._inputs
        }
        output = self._model.get_image_features(**inputs, return_dict=True)
        self._one_tensor = isinstance(output.pooler_output, torch.Tensor)
        layers = [output.pooler_output, *(getattr(output, "deepstack_features", None) or ())]
        flat = [
            (layer if isinstance(layer, torch.Tensor) else torch.cat(tuple(layer))).flatten(0, -2)
            for layer in layers
        ]
        if len(flat[0]) != pixels.count:
            raise EngineError(
                f"the model has {len(flat[0])} features for an image of {pixels.count} placeholders"
            )
        return flat


def _number(key: int) -> int | None:
    return None if key >= 0 else (-1 - key) // _ROWS


def _row(key: int) -> int:
    return (-1 - key) % _ROWS


def positions_of(
    indices: torch.Tensor, spans: Iterable[tuple[int, int, Shown | None]]
) -> torch.Tensor:
    """Return the rotary positions of a pass: ``[3, 1, T]`` with images that have their own.

    Args:
        indices: The tokens' indices in their contexts, int64 ``[1, T]``.
        spans: For each request, its tokens before the pass, those in it, and what it sees.
    """
    planes, first = None, 0
    for past, count, shown in spans:
        if shown is not None and shown.positions is not None:
            if planes is None:
                planes = indices.expand(3, 1, -1).clone()
            own = planes[:, 0, first : first + count]
            own += shown.delta
            prompt = shown.positions[:, past : past + count]
            own[:, : prompt.shape[1]] = prompt.to(indices.device)
        first += count
    return indices if planes is None else planes
