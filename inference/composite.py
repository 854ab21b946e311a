"""A module and the checkpoint that it was loaded from, where names or contents differ.

transformers renames and stacks weights as it loads them, and loads of some composite checkpoints
(text, vision) the text model alone. What is served or exported goes by the checkpoint's own names,
with the weights that were never loaded beside it.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from vf.runtime.errors import ConfigError

FILES = ("*.safetensors", "*.safetensors.index.json", "*processor_config.json")


def composite_config(module: Any) -> Any | None:
    """Return the config of the checkpoint that a module is the text model of, or None.

    None is returned for a module that is the whole of its checkpoint, too, and for one that was
    never loaded.
    """
    from transformers import AutoConfig

    if not module.name_or_path:
        return None
    try:
        config = AutoConfig.from_pretrained(module.name_or_path, local_files_only=True)
    except (OSError, ValueError):  # it was moved since, or is of a class that is not registered
        return None
    return None if config.model_type == module.config.model_type else config


def config_of(module: Any, dtype: Any, *, untied: bool = False) -> Any:
    """Return a copy of the config that a module is saved with: the composite's, if it is of one.

    Args:
        module: One of transformers'.
        dtype: Torch's, of the weights that are saved.
        untied: Whether the head is saved apart from the embedding.
    """
    config = copy.deepcopy(composite_config(module) or module.config)
    text = config.get_text_config()
    own = module.config.get_text_config()  # which of some models leaves this to the whole
    if untied or not getattr(own, "tie_word_embeddings", module.config.tie_word_embeddings):
        config.tie_word_embeddings = text.tie_word_embeddings = False
    config.dtype = dtype
    return config


def original_names(module: Any) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Return what gives a module's tensors the names and shapes of its checkpoint.

    Its argument is tensors by the module's names. Those that the checkpoint holds in one must be
    there together.

    Args:
        module: One of transformers'.
    """
    from transformers.core_model_loading import revert_weight_conversion

    composite = composite_config(module) is not None
    files = _Stored(module.name_or_path).files if composite else {}
    prefix = f"{module.base_model_prefix}."

    def named(state: Mapping[str, Any]) -> dict[str, Any]:
        # Where transformers took off or put on the base model's prefix, it does not note it.
        return {
            prefix + name if name not in files and prefix + name in files else name: tensor
            for name, tensor in revert_weight_conversion(module, dict(state)).items()
        }

    return named


def save_composite(module: Any, folder: Path, state: Mapping[str, Any], config: Any) -> None:
    """Write a text model into the checkpoint that it was loaded from.

    Args:
        module: The text model.
        folder: The folder to write to.
        state: Its tensors, by the module's names.
        config: The composite's, from :func:`config_of`. The caller writes it.

    Raises:
        ConfigError: If the checkpoint's weights cannot be found any more, or have other names.
    """
    stored = _Stored(module.name_or_path)
    tensors = original_names(module)(state)
    unknown = sorted(tensors.keys() - stored.files.keys())
    # A head that had shared the embedding's weights has no place yet.
    if len(unknown) > (not config.get_text_config().tie_word_embeddings):
        raise ConfigError(
            f"the weights of {type(module).__name__} cannot be put back into {stored.folder}: it "
            f"has none called {unknown[0]!r}"
        )
    left = stored.files.keys() - tensors.keys()
    tensors |= {name: tensor.to(config.dtype) for name, tensor in stored.read(left)}
    save_tensors(tensors, folder)
    for file in stored.folder.glob(FILES[-1]):
        shutil.copy(file, folder)


def copy_processor(module: Any, folder: Path) -> None:
    """Copy the settings of a model's processor beside what is written of it, if it has one.

    Args:
        module: One of transformers', as it was loaded.
        folder: The folder that it is written to.
    """
    from huggingface_hub import snapshot_download

    name, kind = module.name_or_path, FILES[-1]
    if name and not Path(name).is_dir():
        name = snapshot_download(name, allow_patterns=[kind], local_files_only=True)
    for file in Path(name).glob(kind) if name else ():
        shutil.copy(file, folder)


def save_tensors(tensors: Mapping[str, Any], folder: Path) -> None:
    """Write tensors by name, in files of 5 GB, with an index where there are several."""
    from huggingface_hub import split_torch_state_dict_into_shards
    from safetensors.torch import save_file

    split = split_torch_state_dict_into_shards(dict(tensors))
    for file, names in split.filename_to_tensors.items():
        part = {name: tensors[name].contiguous() for name in names}
        save_file(part, folder / file, metadata={"format": "pt"})
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        text = json.dumps(index, indent=2, sort_keys=True)
        (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")


class _Stored:
    """The weights of a checkpoint, in the safetensors format.

    Args:
        name: A folder, or a name on the hub that was loaded before.

    Attributes:
        folder: Where it lies on this machine.
        places: In which file each tensor is, by the tensors' names.
    """

    def __init__(self, name: str) -> None:
        from huggingface_hub import snapshot_download
        from safetensors import safe_open

        if not Path(name).is_dir():
            name = snapshot_download(name, allow_patterns=list(FILES), local_files_only=True)
        self.folder = Path(name)
        self.files: dict[str, Path] = {}
        for file in sorted(self.folder.glob("*.safetensors")):
            with safe_open(file, framework="pt") as tensors:
                self.files |= dict.fromkeys(tensors.keys(), file)
        if not self.files:
            raise ConfigError(
                f"{self.folder} holds no *.safetensors, from which the weights beside the text "
                "model could be taken"
            )

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, Any]]:
        """Yield tensors by name."""
        from safetensors import safe_open

        for name in sorted(names):
            with safe_open(self.files[name], framework="pt") as tensors:
                yield name, tensors.get_tensor(name)
