"""What a model's own processor makes of images: placeholder tokens, and pixels.

A chat template shows an image as one placeholder. The processor replaces it by as many as the
model has features for the image, with marks around them, and makes the tensors that the model's
vision tower takes. Each image is processed by itself, so what it becomes depends on nothing else.
"""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from vf.inference.model_files import resolve_model
from vf.runtime.errors import ConfigError
from vf.runtime.extras import load
from vf.traces.images import Image
from vf.traces.messages import Message

# Types of models whose images the embedded engine computes as transformers does; each is tested.
FAMILIES = ("gemma3", "idefics3", "qwen2_5_vl", "qwen3_vl", "smolvlm")
_MOST_BYTES = 2**29  # of processed images that are kept
_NO_PIXELS = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids")
_OFFSETS = "text_replacement_offsets"


@dataclass(frozen=True, slots=True, eq=False)
class Pixels:
    """One image as a model takes it.

    Attributes:
        text: What the template's placeholder is replaced by.
        count: How many placeholder tokens are in it, each of which stands for one feature.
        inputs: Torch tensors, by the names of the arguments of ``get_image_features``.
    """

    text: str
    count: int
    inputs: dict[str, Any]

    @property
    def size(self) -> int:
        """Bytes of the tensors."""
        return sum(value.nbytes for value in self.inputs.values())


class Vision:
    """Turns images into placeholders and pixels for one model.

    Args:
        processor: One of transformers' ``ProcessorMixin``, with an image processor.

    Attributes:
        mark: The placeholder of the chat template.
        token_id: The token that stands for one feature.
    """

    def __init__(self, processor: Any) -> None:
        self.processor = processor
        self.mark = str(processor.image_token)
        self.token_id = int(processor.image_token_ids[0])
        self._token = str(processor.tokenizer.convert_ids_to_tokens(self.token_id))
        self._cached: OrderedDict[str, Pixels] = OrderedDict()
        self._lock = threading.Lock()

    @classmethod
    def from_pretrained(cls, model: str) -> Vision:
        """Load the processor of a local folder or a hub name.

        Raises:
            ConfigError: If the model's type is not one whose images are read, or the processor
                cannot be loaded.
        """
        from transformers import AutoConfig, AutoProcessor

        load("PIL.Image", "images")
        path = resolve_model(model)
        try:
            config = AutoConfig.from_pretrained(path)
        except (OSError, ValueError) as error:
            raise ConfigError(f"model {model!r}: {str(error).splitlines()[0]}") from error
        if config.model_type not in FAMILIES:
            raise ConfigError(
                f"model {model!r} is of the type {config.model_type}, for which vf-rl's embedded "
                f"engine reads no images: it does for {', '.join(FAMILIES)}. Serve the model "
                "elsewhere, and give the server's address with -b (base_url)"
            )
        try:
            try:
                return cls(AutoProcessor.from_pretrained(path))
            except ImportError:  # of what videos need, for most
                return cls(_without_videos(config).from_pretrained(path))
        except Exception as error:  # files that hold something else raise anything
            raise ConfigError(f"model {model!r}: cannot load its processor: {error}") from error

    def pixels(self, image: Image) -> Pixels:
        """Return what the processor makes of an image, now or lately.

        Raises:
            ConfigError: If the image's file is missing or damaged, or the processor refuses it.
        """
        pixels = self._cached.get(image.sha256)
        if pixels is None:
            pixels = self._process(image)
            with self._lock:
                self._cached[image.sha256] = pixels
                while sum(kept.size for kept in self._cached.values()) > _MOST_BYTES:
                    self._cached.popitem(last=False)
        return pixels

    def shown(self, text: str, images: Sequence[Image]) -> str:
        """Return a rendered text in which each image's placeholder is replaced.

        Args:
            text: The chat template's text of messages.
            images: Those messages' images, in order.

        Raises:
            ConfigError: If the text has more or fewer placeholders than there are images.
        """
        first, *rest = text.split(self.mark)
        if len(rest) != len(images):
            raise ConfigError(
                f"the chat template shows {len(rest)} of {len(images)} images: it leaves out those "
                f"of a role (tool_style = 'text' shows tools' in users' messages), or {self.mark} "
                "is written in a message"
            )
        parts = (self.pixels(image).text + after for image, after in zip(images, rest, strict=True))
        return first + "".join(parts)

    def placed(self, token_ids: Sequence[int], images: Sequence[Image], begin: int) -> list[Image]:
        """Return images with the places of their first placeholders.

        Args:
            token_ids: Tokens that were not sampled.
            images: All images among them, in order.
            begin: Number of tokens before these.

        Raises:
            ConfigError: If the tokens have more or fewer placeholders than the images.
        """
        indices = [i for i, token in enumerate(token_ids, begin) if token == self.token_id]
        counts = [self.pixels(image).count for image in images]
        if len(indices) != sum(counts):
            raise ConfigError(
                f"{len(images)} images have {sum(counts)} placeholders, but the prompt has "
                f"{len(indices)}: {self._token} is written in a message"
            )
        out, first = [], 0
        for image, count in zip(images, counts, strict=True):
            out.append(replace(image, at=indices[first]))
            first += count
        return out

    def _process(self, image: Image) -> Pixels:
        import torch
        from PIL import Image as Pillow
        from transformers.image_utils import load_image

        opened = load_image(Pillow.open(io.BytesIO(image.read())))  # upright, and in RGB
        try:
            made = dict(
                self.processor(
                    images=[opened], text=[self.mark], return_text_replacement_offsets=True
                )
            )
        except Exception as error:  # a processor raises whatever its author chose
            raise ConfigError(
                f"the model's processor refuses the image {image.name}, of {opened.width} x "
                f"{opened.height} pixels: {error}"
            ) from error
        text = made.pop(_OFFSETS)[0][0]["replacement"]
        inputs = {
            name: value if isinstance(value, torch.Tensor) else _tensor(value)
            for name, value in made.items()
            if name not in _NO_PIXELS
        }
        return Pixels(text, text.count(self._token), inputs)


def images_of(messages: Sequence[Message]) -> list[Image]:
    """Return the images of messages, in order."""
    return [image for message in messages for image in message.images]


def _tensor(value: Any) -> Any:
    import numpy as np
    import torch

    return torch.as_tensor(np.asarray(value))


def _without_videos(config: Any) -> Any:
    """Return the class of a model's processor without its part for videos.

    That part needs torchvision; images do not.
    """
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

    processor: Any = PROCESSOR_MAPPING[type(config)]

    class OfImages(processor):  # type: ignore[misc]
        @classmethod
        def get_attributes(cls) -> list[str]:
            return ["image_processor", "tokenizer"]

        @classmethod
        def from_args_and_dict(cls, args: Any, processor_dict: Any, **options: Any) -> Any:
            settings = {**processor_dict, "video_processor": None}
            return super().from_args_and_dict(args, settings, **options)

    return OfImages
