"""From a checkpoint to a folder that transformers and vLLM load, written whole or not at all."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from vf.inference.model_files import save_module
from vf.inference.rendering.renderer import Renderer
from vf.runtime.durable import sync
from vf.runtime.errors import ConfigError
from vf.trainer.learning.sharding.checkpoint_shards import PARAMETERS
from vf.trainer.saving.checkpoint import open_tensors
from vf.trainer.saving.checkpoint_files import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from vf.trainer.saving.export_source import Source
from vf.trainer.saving.merging import (
    load_model,
    merge,
    read_adapter,
)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written.

    Attributes:
        folder: Where.
        form: ``merged`` (a base with its adapter merged in), ``model`` (all weights were trained)
            or ``adapter``.
        dtype: The dtype of the weights, like ``float32``.
        size: Bytes in all files.
        untied: Whether a head that had shared the embedding's weights got its own.
    """

    folder: Path
    form: str
    dtype: str
    size: int
    untied: bool


def export(
    source: Source,
    target: Path | None = None,
    *,
    adapter: bool = False,
    dtype: str | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Exported:
    """Write a checkpoint's model or adapter, with tokenizer, chat template and stop tokens.

    The model is held in memory once, in ``dtype``.

    Args:
        source: The checkpoint, with the settings of its run.
        target: Folder to write; by default in ``exports/`` of the run's folder.
        adapter: Write the adapter alone, in PEFT's format, rather than merging it.
        dtype: ``float32`` or ``bfloat16``; by default what the run sampled from: bfloat16 with
            ``bf16``, otherwise float32. Where all weights were trained with ``bf16``, ``float32``
            gives them as the optimizer held them.
        say: Called with what is being done.

    Raises:
        ConfigError: If the checkpoint is damaged, ``adapter`` is set for a run that has none, or
            the target exists.
        OSError: If the target cannot be written, as on a full disk. Nothing is left behind.
    """
    if adapter and source.adapter is None:
        raise ConfigError(
            f"--adapter: {source.checkpoint} is of a run that trained all weights "
            "(use_lora = false), so there is none; leave it out"
        )
    form = "model" if source.adapter is None else "adapter" if adapter else "merged"
    target = (target or _default_target(source.checkpoint, form)).absolute()
    if os.path.lexists(target):
        raise ConfigError(
            f"{target} exists and is never overwritten: remove it to export again, "
            f"or choose another folder, such as -o {_free(target)}"
        )
    tokenizer, generation = _how_to_generate(source)
    untied, requested = False, None if dtype is None else DTYPES[dtype]
    if adapter:
        say("reading the adapter")
        tensors = {
            name: tensor.to(requested) for name, tensor in read_adapter(source.model).items()
        }
        written = next(iter(tensors.values())).dtype
    elif source.adapter is not None:
        say(f"loading {source.base}")
        in_run = torch.bfloat16 if source.bf16 else torch.float32
        model, untied = merge(source.model, source.base, requested or in_run)
        written = model.dtype
    else:
        say(f"loading {source.model}")
        model = load_model(str(source.model), requested or "auto")
        if requested == torch.float32 and source.bf16:
            _take_masters(model, source.checkpoint)
        written = model.dtype
    say(f"writing {target}")
    with _whole(target) as folder:
        if adapter:
            save_file(tensors, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
            named = {**(source.adapter or {}), "base_model_name_or_path": source.base}
            _write_json(folder / ADAPTER_CONFIG, named)
        else:
            save_module(model, folder)
        tokenizer.save_pretrained(folder)
        _write_json(folder / "generation_config.json", generation)
        size = sum(file.stat().st_size for file in folder.rglob("*"))
    return Exported(target, form, str(written).removeprefix("torch."), size, untied)


def _take_masters(model: Any, checkpoint: Path) -> None:
    """Give a model the float32 values of its weights, which its own files hold rounded."""
    masters = {
        f"{PARAMETERS}/{name}": parameter.detach() for name, parameter in model.named_parameters()
    }
    try:
        open_tensors(checkpoint).read(masters)
    except (ConfigError, RuntimeError) as error:
        raise ConfigError(
            f"the float32 weights in {checkpoint} cannot be read: {error}. Leave --dtype out to "
            "export them in bfloat16"
        ) from error


def _free(target: Path) -> Path:
    """Return a folder's name with the first number that is free."""
    numbered = (target.with_name(f"{target.name}-{number}") for number in itertools.count(2))
    return next(candidate for candidate in numbered if not os.path.lexists(candidate))


def _default_target(checkpoint: Path, form: str) -> Path:
    if checkpoint.parent.name != "checkpoints":
        raise ConfigError(f"{checkpoint} is in no run's folder; name the folder to write with -o")
    return checkpoint.parent.parent / "exports" / f"{checkpoint.name}-{form}"


def _how_to_generate(source: Source) -> tuple[Any, dict[str, Any]]:
    """Return the tokenizer, and the base's generation config with every token that ends answers."""
    from transformers import AutoTokenizer, GenerationConfig

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(source.model))
    except Exception as error:  # what reads tokenizer.json raises a bare Exception
        raise ConfigError(f"cannot load the tokenizer in {source.model}: {error}") from error
    try:
        generation: dict[str, Any] = GenerationConfig.from_pretrained(source.base).to_diff_dict()
    except (OSError, ValueError):  # the base has none
        generation = {}
    # With this mark, transformers would take the stop tokens from config.json instead.
    generation.pop("_from_model_config", None)
    eos = generation.get("eos_token_id")
    ids = [] if eos is None else [eos] if isinstance(eos, int) else eos
    stops = Renderer(tokenizer, ids, source.template_args).stop_token_ids
    return tokenizer, generation | {"eos_token_id": stops[0] if len(stops) == 1 else stops}


@contextmanager
def _whole(target: Path) -> Iterator[Path]:
    """Yield a folder that becomes the target if all goes well, and is removed otherwise."""
    made = [folder for folder in target.parents if not folder.exists()]
    writing = target.with_name(f".writing-{target.name}-{os.getpid()}")
    try:
        writing.mkdir(parents=True)
        yield writing
        readable = writing.stat().st_mode & 0o666  # safetensors writes files for the owner only
        for file in writing.rglob("*"):
            file.chmod(readable)
            sync(file)
        writing.rename(target)
    except BaseException as error:
        shutil.rmtree(writing, ignore_errors=True)
        for folder in made:
            with suppress(OSError):  # someone else has put something in it
                folder.rmdir()
        if isinstance(error, OSError | SafetensorError):
            raise OSError(
                f"cannot write {target}: {error}; nothing is left behind. Make room, or choose "
                "another folder with -o"
            ) from error
        raise


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
