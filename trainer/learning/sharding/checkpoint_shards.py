"""A checkpoint's tensors: each trainer process writes its own part, and reads only its own.

The format is that of ``torch.distributed.checkpoint``. It keeps every tensor under its name, in as
many parts as there were processes that held it, so another number of processes can read it.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from vf.trainer.learning.sharding.safe_unpickling import Planner, Reader

# The first part of a name; the parameter's follows, and for the optimizer that of a moment.
PARAMETERS, OPTIMIZER, REFERENCE = "parameters", "optimizer", "reference"


def stage(values: Iterable[tuple[str, Any]], rank: int = 0, count: int = 1) -> dict[str, Any]:
    """Copy what one process writes to the host's memory, so that the originals may change.

    Of a tensor that is spread over the processes, each writes its part. What all of them hold is
    shared out, nearly equally in bytes.

    Args:
        values: Tensors and numbers by name, the same names in the same order on every process.
        rank: The number of this process.
        count: The number of processes.
    """
    loads = [0] * count
    mine: dict[str, Any] = {}
    for name, value in values:
        if not isinstance(value, DTensor):
            writer = loads.index(min(loads))
            loads[writer] += value.nbytes if isinstance(value, torch.Tensor) else 1
            if writer != rank:
                continue
        is_tensor = isinstance(value, torch.Tensor)
        mine[name] = value.detach().to("cpu", copy=True) if is_tensor else value
    return mine


def write(folder: Path, staged: Mapping[str, Any], group: Any = None) -> None:
    """Write what :func:`stage` returned, together with the other processes.

    Args:
        folder: The folder to write to; the same on all processes.
        staged: This process's share.
        group: The group of the processes, over gloo; None if this one writes alone.

    Raises:
        RuntimeError: If a process could not write, or is gone; says why.
    """
    _accept_one_process()
    try:
        save(dict(staged), checkpoint_id=folder, process_group=group, no_dist=group is None)
    except CheckpointException as error:
        raise RuntimeError(_reason(error)) from error


class Stored:
    """The tensors of a checkpoint, read into memory that is there already.

    Args:
        folder: The folder that :func:`write` wrote to.

    Raises:
        OSError: If there is no such checkpoint.
        RuntimeError: If it is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            metadata = Reader(folder).read_metadata()
            self._entries = metadata.state_dict_metadata
            self._parts = list((metadata.storage_data or {}).values())
        except OSError:
            raise
        except Exception as error:  # unpickling bytes that mean nothing raises anything
            raise RuntimeError(f"{folder} cannot be read: {error!r}") from error
        self._below: dict[str, list[str]] = defaultdict(list)
        for name in self._entries:
            parent, _, last = name.rpartition("/")
            self._below[parent].append(last)

    @property
    def short_file(self) -> str | None:
        """A file that is missing or too short, as below the checkpoint; None if there is none."""
        for part in self._parts:
            file = self._folder / part.relative_path
            if not file.is_file() or file.stat().st_size < part.offset + part.length:
                return f"{self._folder.name}/{part.relative_path}"
        return None

    def below(self, parent: str) -> list[str]:
        """Return the last parts of the names that begin with ``parent/``."""
        return self._below.get(parent, [])

    def shapes(self, parent: str) -> dict[str, torch.Size]:
        """Return the shapes of the tensors below a name, whole."""
        sizes = {}
        for name in self.below(parent):
            entry = self._entries[f"{parent}/{name}"]
            if isinstance(entry, TensorStorageMetadata):
                sizes[name] = entry.size
        return sizes

    def room(self, name: str, like: torch.Tensor) -> torch.Tensor | None:
        """Return memory for a tensor, or None for what is no tensor.

        Args:
            name: The tensor's.
            like: A tensor on the device to use. With the same shape, the result is spread as it is.
        """
        entry = self._entries[name]
        if not isinstance(entry, TensorStorageMetadata):
            return None
        dtype = entry.properties.dtype
        if entry.size == like.shape:
            return torch.empty_like(like, dtype=dtype, requires_grad=False)
        return torch.empty(entry.size, dtype=dtype, device=like.device)

    def read(self, values: dict[str, Any]) -> None:
        """Replace values by the stored ones, tensors in place; this process's parts where spread.

        Raises:
            RuntimeError: If a name is not there, or files are damaged.
        """
        _accept_one_process()
        if not values:
            return
        try:
            load(values, storage_reader=Reader(self._folder), planner=Planner(), no_dist=True)
        except CheckpointException as error:
            raise RuntimeError(_reason(error)) from error


def _reason(error: CheckpointException) -> str:
    """Return what went wrong first, without the traceback that the exception prints."""
    rank, (cause, _) = next(iter(error.failures.items()))
    return str(cause) if len(error.failures) == 1 and not rank else f"process {rank}: {cause}"


def _accept_one_process() -> None:
    """Silence a warning that there is but one process, even where it was asked for."""
    warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable", UserWarning)
