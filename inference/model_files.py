"""Where a model is: a folder with weights, an adapter on top of one, or a hub name.

Importing this module loads neither torch nor transformers.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vf.inference.composite import (
    config_of,
    copy_processor,
    original_names,
    save_composite,
    save_tensors,
)
from vf.inference.hub import check_hub_name
from vf.runtime.errors import ConfigError

TINY = "tiny"
_TEXT_PART = "language_model"  # of models that see, in their names of layers


def resolve_model(name: str) -> str:
    """Return the folder of the shipped model for ``tiny``, and any other name as it is.

    A ``~`` at the beginning of a folder's name is replaced by the home directory.
    """
    return str(Path(__file__).parent / "tiny") if name == TINY else os.path.expanduser(name)


def find_model(name: str, label: str | None = None) -> str:
    """Return where a model is loaded from: a folder that is there, or a name on the hub.

    Args:
        name: A folder, ``tiny``, or a hub name.
        label: The setting that names it, for the error; ``model`` by default.

    Raises:
        ConfigError: If there is no such folder, and the hub does not give a model of this name,
            within seconds; the message says what was tried.
    """
    path, label = resolve_model(name), label or f"model = {name!r}"
    if not path:
        raise ConfigError(f"{label}: it is empty; name a folder, {TINY}, or a model on the hub")
    if Path(path).is_dir():
        return path
    if Path(path).is_file():
        raise ConfigError(f"{label}: {path} is a file; name the folder that holds the model")
    # The hub's names are OWNER/NAME, so a folder that exists here is no owner.
    begins_here = path.count("/") == 1 and Path(path).parent.is_dir()
    if path.startswith((".", "/")) or path.count("/") > 1 or begins_here:
        raise ConfigError(f"{label}: there is no such folder ({Path(path).absolute()})")
    check_hub_name(path, label)
    return path


def check_weights(folder: str | Path) -> None:
    """See that the files of weights in a folder are whole, from their headers and sizes.

    Args:
        folder: The folder; a name on the hub is not looked at.

    Raises:
        ConfigError: If one is not.
    """
    files = sorted(Path(folder).glob("*.safetensors"))
    if not files:
        return
    try:
        from safetensors import SafetensorError, safe_open
    except ModuleNotFoundError:  # then nothing is loaded here
        return
    for file in files:
        try:
            with safe_open(file, framework="np"):
                pass
        except (OSError, SafetensorError) as error:
            raise ConfigError(
                f"cannot read the weights {file}: {error}; the file is damaged or was not copied "
                "whole"
            ) from error


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a model lies.

    Attributes:
        base: The folder or hub name of the whole model.
        adapter: The folder of a LoRA adapter on top of it, or None.
        rank: The adapter's rank.
    """

    base: str
    adapter: Path | None = None
    rank: int | None = None

    @classmethod
    def find(cls, name: str) -> Checkpoint:
        """Read where a model lies: a folder with a model or an adapter, ``tiny``, or a hub name.

        Raises:
            ConfigError: If there is no such folder, nothing to load in it, or no such hub name, or
                a file of weights is damaged.
        """
        path = Path(find_model(name, f"model {name!r}"))
        if not path.is_dir():
            return cls(name)
        check_weights(path)
        adapter = path / "adapter_config.json"
        if adapter.is_file():
            try:
                config = json.loads(adapter.read_text(encoding="utf-8"))
                base, rank = str(config["base_model_name_or_path"]), int(config["r"])
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(f"{adapter} is not an adapter's config: {error}") from error
            check_weights(resolve_model(base))
            return cls(base, path, rank)
        if not (path / "config.json").is_file():
            raise ConfigError(
                f"model {name!r}: the folder holds neither config.json nor an adapter"
            )
        return cls(str(path))

    def save(self, folder: Path, *, untied: bool = False) -> None:
        """Write the adapter, as :class:`~vf.inference.engine.Weights` does."""
        if self.adapter is not None:
            shutil.copytree(self.adapter, folder)

    def named_tensors(self) -> Iterator[tuple[str, Any]]:
        """Yield nothing: an adapter goes by :meth:`save`."""
        return iter(())

    def config(self) -> Any:
        """Return the config of the whole model, one of transformers'.

        Raises:
            ConfigError: If it cannot be loaded.
        """
        from transformers import AutoConfig

        try:
            return AutoConfig.from_pretrained(resolve_model(self.base))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"model {self.base!r} is neither a folder with a model nor one that the hub gave: "
                f"{str(error).splitlines()[0]}"
            ) from error

    def context(self) -> int | None:
        """Return the model's longest context in tokens, if its config says.

        Raises:
            ConfigError: If it cannot be loaded.
        """
        text = self.config().get_text_config()
        context: int | None = getattr(text, "max_position_embeddings", None)
        return context

    def load(self, *, sees: bool = False) -> Any:
        """Return the module, adapter included, on a GPU in bfloat16 if there is one.

        Args:
            sees: Whether a vision tower is loaded, too.

        Raises:
            ConfigError: If it cannot be loaded.
        """
        import torch

        cuda = torch.cuda.is_available()
        dtype = torch.bfloat16 if cuda else torch.float32
        whole = self.adapter is not None and adapts_whole(self.adapter)
        module = load_module(self.base, dtype, sees=sees or whole)
        if (
            sees
            and self.adapter is not None
            and not whole
            and hasattr(module.base_model, _TEXT_PART)
        ):
            raise ConfigError(
                f"the adapter {self.adapter} is of the text part of {self.base} alone, which sees "
                "no images: train it with trainer.args.images = true, or merge it (vf-rl export)"
            )
        if self.adapter is not None:
            from peft import PeftModel

            module = PeftModel.from_pretrained(module, str(self.adapter)).get_base_model()
        return module.to("cuda" if cuda else "cpu").eval()


def adapts_whole(folder: Path) -> bool:
    """Return whether an adapter is of a whole model that sees, not of its text part alone.

    Args:
        folder: The adapter's.
    """
    from safetensors import safe_open

    with safe_open(folder / "adapter_model.safetensors", "pt") as file:
        return any(f".{_TEXT_PART}." in name for name in file.keys())  # noqa: SIM118


def load_module(
    name: str, dtype: Any, key: str = "model", *, sees: bool = False, **options: Any
) -> Any:
    """Return a causal language model, on the CPU.

    Args:
        name: A folder, ``tiny``, or a hub name.
        dtype: Torch's, of the weights.
        key: The setting that names it, for the error.
        sees: Whether a vision tower is loaded, too.
        **options: For ``from_pretrained``, such as ``quantization_config``.

    Raises:
        ConfigError: If it cannot be loaded.
    """
    path = resolve_model(name)
    check_weights(path)
    kind = model_class(sees=sees)
    try:
        # Its attention is transformers' choice: sdpa, or eager where that lacks sinks or soft caps.
        return kind.from_pretrained(path, dtype=dtype, **options)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{key} = {name!r}: cannot load it: {error}") from error


def model_class(*, sees: bool) -> Any:
    """Return the class of transformers' that makes causal language models.

    Args:
        sees: Whether they have their vision tower.
    """
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    return AutoModelForImageTextToText if sees else AutoModelForCausalLM


def save_module(
    module: Any,
    folder: Path,
    state: dict[str, Any] | None = None,
    *,
    dtype: Any = None,
    untied: bool = False,
) -> None:
    """Write a causal language model in Hugging Face's format, as the checkpoint that it is from.

    Tensors have the names that they have there. If it is the text model of a composite, the rest
    is written too. The generation config is written as it is: transformers refuses to write one
    whose flags contradict each other, as those of some published models do, and with it the
    weights.

    Args:
        module: One of transformers'.
        folder: The folder to write to.
        state: Tensors by name, in place of the module's own.
        dtype: Torch's, that the config names; by default the module's.
        untied: Write a head of its own, also where it is tied to the embedding.

    Raises:
        ConfigError: If the rest of a composite cannot be found any more.
    """
    from transformers import GenerationConfig

    config = config_of(module, dtype or module.dtype, untied=untied)
    folder.mkdir(parents=True, exist_ok=True)
    generation, module.generation_config = module.generation_config, GenerationConfig()
    try:
        if config.model_type != module.config.model_type:
            tensors = module.state_dict() if state is None else state
            save_composite(module, folder, tensors if untied else _once(module, tensors), config)
        elif untied:
            tensors = module.state_dict() if state is None else state
            save_tensors(original_names(module)(tensors), folder)
        else:
            module.save_pretrained(folder, state_dict=state)
        config.save_pretrained(folder)
        if hasattr(module, "get_image_features"):
            copy_processor(module, folder)
    finally:
        module.generation_config = generation
    generation.to_json_file(folder / "generation_config.json")


def _once(module: Any, tensors: dict[str, Any]) -> dict[str, Any]:
    """Leave out the second names of tied parameters."""
    every = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    second = every - {name for name, _ in module.named_parameters()}
    return {name: tensor for name, tensor in tensors.items() if name not in second}
