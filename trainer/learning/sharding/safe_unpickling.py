"""Reading a checkpoint's files, which somebody may have sent, without running what they say.

``torch.distributed.checkpoint`` unpickles two things in full: its index of tensors, and what is no
tensor. A pickle may name any function and call it.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import ReadItem

# What an index is made of, by module; of torch itself, also its data types.
_NAMES = {
    metadata.__name__: {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    filesystem.__name__: {"_StorageInfo"},
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
    "pathlib": {"Path", "PosixPath"},
    "pathlib._local": {"Path", "PosixPath"},  # Python 3.13's
}


class _Index(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return what a pickle names, if an index of tensors may name it."""
        if name in _NAMES.get(module, ()):
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise pickle.UnpicklingError(f"an index of tensors cannot hold {module}.{name}")


class Reader(FileSystemReader):
    """Reads a checkpoint whose index may be anybody's."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the index.

        Raises:
            pickle.UnpicklingError: If it holds something else.
        """
        with self.fs.create_stream(self._get_metadata_path(kwargs.get("rank")), "rb") as file:
            metadata_read = _Index(file).load()
        if not isinstance(metadata_read, Metadata):
            raise pickle.UnpicklingError("the index of tensors is something else")
        metadata_read.storage_meta = metadata_read.storage_meta or StorageMeta()
        metadata_read.storage_meta.load_id = self.load_id
        return metadata_read


class Planner(DefaultLoadPlanner):
    """Reads what is no tensor, such as a count of steps, as plain values; names are flat."""

    def __init__(self) -> None:
        # Flattening would read into a copy of the values.
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Put a value into its place."""
        self.state_dict[read_item.dest_index.fqn] = torch.load(value, weights_only=True)
