"""What a model's own processor makes of images: placeholder tokens, and pixels.

A chat template shows an image as one placeholder. The processor replaces it by as many as the
model has features for the image, with marks around them, and makes the tensors that the model's
vision tower takes. Each image is processed by itself, so what it becomes depends on nothing else.
"""

from __future__ import annotations

import base64
import io
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from vf.inference.model import ContextFull
from vf.inference.model_files import resolve_model
from vf.runtime.errors import ConfigError
from vf.runtime.extras import load
from vf.traces.images import Image
from vf.traces.messages import Message

T = TypeVar("T")
# Types of models whose images the embedded engine computes as transformers does; each is tested.
FAMILIES = ("gemma3", "idefics3", "qwen2_5_vl", "qwen3_5", "qwen3_vl", "smolvlm")
# Those of them whose images vLLM computes so, too. It has other names for the weights of Gemma 3.
SERVED = ("idefics3", "qwen2_5_vl", "qwen3_vl", "smolvlm")
_MOST_BYTES = 2**29  # of processed images that are kept, and of those that are sent
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
        self._pixels = _Recent[Pixels](lambda pixels: pixels.size)
        self._urls = _Recent[str](len)

    @classmethod
    def from_pretrained(cls, model: str, *, served: bool = False) -> Vision:
        """Load the processor of a local folder or a hub name.

        Args:
            model: The folder or name.
            served: Whether vLLM reads the images, and not the embedded engine.

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
        families = SERVED if served else FAMILIES
        if config.model_type not in families:
            where = "a vLLM server given token ids" if served else "vf-rl's embedded engine"
            raise ConfigError(
                f"model {model!r} is of the type {config.model_type}, of which no images are read "
                f"by {where}: they are for {', '.join(families)}. To measure it, serve the model "
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
        return self._pixels.get(image.sha256, partial(self._process, image))

    def test_prompt(self) -> tuple[list[int], list[Image]]:
        """Return the tokens of a test picture, and it with its place in them."""
        image = sample_picture()
        token_ids = self._encode(self.pixels(image).text)
        return token_ids, self.placed(token_ids, [image], 0)

    def as_sent(
        self, token_ids: Sequence[int], images: Sequence[Image]
    ) -> tuple[list[int], list[dict[str, str]]]:
        """Return a prompt as servers take it that process images themselves.

        Args:
            token_ids: A prompt's.
            images: Its images, with their places in it, in order.

        Returns:
            The tokens, with the chat template's placeholder for each image; and for each its data
            URL (``url``) and hash (``uuid``). It is sent as this machine's processor resizes it, so
            that the server's, with another library for images, has nothing to resize.

        Raises:
            ConfigError: If the processor's tokens for an image are not at its place.
            ContextFull: If the model has sampled a placeholder before an image: the server would
                take it for that image's.
        """
        mark, sent, end = self._encode(self.mark), list[int](), 0
        for image in images:
            whole = self._encode(self.pixels(image).text)
            begin = image.at - whole.index(self.token_id)
            if list(token_ids[begin : begin + len(whole)]) != whole:
                raise ConfigError(f"the image {image.name} is not where its trace has it")
            if self.token_id in token_ids[end:begin]:
                raise ContextFull
            sent += [*token_ids[end:begin], *mark]
            end = begin + len(whole)
        parts = [
            {
                "type": "image_url",
                "url": self._urls.get(image.sha256, partial(self._url, image)),
                "uuid": image.sha256,
            }
            for image in images
        ]
        return [*sent, *token_ids[end:]], parts

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

    def _encode(self, text: str) -> list[int]:
        return list(self.processor.tokenizer.encode(text, add_special_tokens=False))

    def _url(self, image: Image) -> str:
        opened = _opened(image)
        grid = self.pixels(image).inputs.get("image_grid_thw")
        if grid is not None:
            settings = self.processor.image_processor
            height, width = (settings.patch_size * int(patches) for patches in grid[0, 1:])
            opened = opened.resize((width, height), settings.resample)
        with io.BytesIO() as file:
            opened.save(file, "PNG")
            return "data:image/png;base64," + base64.b64encode(file.getbuffer()).decode("ascii")

    def _process(self, image: Image) -> Pixels:
        import torch

        opened = _opened(image)
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


def sample_picture() -> Image:
    """Return a picture of 90 x 60 pixels, of many colours: no processor leaves it as it is."""
    from PIL import Image as Pillow

    wide = Pillow.linear_gradient("L").resize((90, 60))
    round_ = Pillow.radial_gradient("L").resize((90, 60))
    tall = Pillow.linear_gradient("L").rotate(90).resize((90, 60))
    return Image.of(Pillow.merge("RGB", (wide, round_, tall)))


class _Recent(Generic[T]):
    """Keeps what was made lately, by name. Safe to use from any thread.

    Args:
        size: Bytes of one.
    """

    def __init__(self, size: Callable[[T], int]) -> None:
        self._size = size
        self._kept: OrderedDict[str, T] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: str, make: Callable[[], T]) -> T:
        """Return what is kept, or make it."""
        value = self._kept.get(name)
        if value is None:
            value = make()
            with self._lock:
                self._kept[name] = value
                while sum(map(self._size, self._kept.values())) > _MOST_BYTES:
                    self._kept.popitem(last=False)
        return value


def _opened(image: Image) -> Any:
    """Return an image of Pillow's, upright and in RGB."""
    from PIL import Image as Pillow
    from transformers.image_utils import load_image

    return load_image(Pillow.open(io.BytesIO(image.read())))


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
