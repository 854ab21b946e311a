"""The sequences on disk, in the run's folder, and as the dataset that TRL's SFTTrainer takes.

They are kept because a resumed run has to see the same ones in the same order, whatever has
happened to the traces since. The trainer gets finished token ids and labels: it neither encodes nor
masks anything.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vf.runtime.errors import ConfigError
from vf.traces.images import Image
from vf.trainer.sft.select import Sequenced


def save_sequences(sequences: Sequence[Sequenced], path: Path) -> None:
    """Write sequences as Parquet: ``input_ids``, ``labels``, ``task``, ``reward`` and ``seen``.

    The last are the images, each with its ``name``, its place (``at``) and its ``data``; the column
    is there only if any sequence has some.

    Raises:
        BadImage: If an image's file is missing or damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as parquet

    columns = {
        "input_ids": _lists([sequence.input_ids for sequence in sequences]),
        "labels": _lists([sequence.labels for sequence in sequences]),
        "task": pa.array([sequence.task for sequence in sequences], pa.string()),
        "reward": pa.array([sequence.reward for sequence in sequences], pa.float64()),
    }
    if any(sequence.images for sequence in sequences):
        columns["seen"] = pa.array(
            [
                [{"name": i.name, "at": i.at, "data": i.read()} for i in sequence.images]
                for sequence in sequences
            ],
            pa.list_(pa.struct({"name": pa.string(), "at": pa.int64(), "data": pa.binary()})),
        )
    path.parent.mkdir(exist_ok=True)
    temporary = path.with_suffix(".tmp")
    parquet.write_table(pa.table(columns), temporary, compression="zstd")
    temporary.replace(path)


def _lists(arrays: Sequence[array[int]]) -> Any:
    import pyarrow as pa

    sizes = np.array([len(ids) for ids in arrays], dtype=np.int32)
    values = np.concatenate([np.frombuffer(ids, dtype=np.int32) for ids in arrays])
    return pa.ListArray.from_arrays(np.concatenate([[0], sizes.cumsum()]).astype(np.int32), values)


def load_dataset(path: Path) -> Any:
    """Return a file's ``input_ids``, ``labels`` and, if there are any, ``seen`` images, in memory.

    Returns:
        A ``datasets.Dataset``.

    Raises:
        ConfigError: If the file cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as parquet
    from datasets import Dataset
    from datasets.table import InMemoryTable

    try:
        kept = [c for c in parquet.read_schema(path).names if c not in ("task", "reward")]
        table = parquet.read_table(path, columns=kept)
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"cannot read the run's sequences {path}: {error}") from error
    return Dataset(InMemoryTable(table))


def seen_images(entries: Sequence[dict[str, Any]]) -> list[Image]:
    """Return the images of one sequence, as the column ``seen`` has them."""
    return [replace(Image.named(e["name"], e["at"]), data=e["data"]) for e in entries]
