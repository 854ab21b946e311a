"""The adapters that samplers need: the most recently used in memory, the others on the disk."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch

from vf.inference.embedded.lora_mixture import Lora
from vf.runtime.temporary import make_temporary_folder, remove_tree
from vf.trainer.tinker_api.adapter import lora_from_peft, peft_tensors
from vf.trainer.tinker_api.checkpoints import Checkpoints
from vf.trainer.tinker_api.tenants import Sampler

RESIDENT = 16  # adapters in memory that only samplers need


class Snapshots:
    """Loads and keeps what samplers sample with. One thread at a time may call it.

    Args:
        checkpoints: The store of saved ones.
        device: The device of the model.
    """

    def __init__(self, checkpoints: Checkpoints, device: torch.device) -> None:
        self._checkpoints, self._device = checkpoints, device
        self._folder = make_temporary_folder("snapshots")
        self._resident: OrderedDict[Sampler, None] = OrderedDict()
        self._written: set[Sampler] = set()

    def close(self) -> None:
        """Remove what was written."""
        remove_tree(self._folder)

    def hold(self, sampler: Sampler, lora: Lora) -> None:
        """Keep a sampler's adapter; the one that was not used for longest goes to the disk."""
        sampler.lora = lora
        self._resident[sampler] = None
        self._resident.move_to_end(sampler)
        while len(self._resident) > RESIDENT:
            oldest, _ = self._resident.popitem(last=False)
            if oldest.path is None and oldest.lora is not None:
                self._write(oldest, oldest.lora)
            oldest.lora = None

    def load(self, sampler: Sampler) -> Lora | None:
        """Return a sampler's adapter; None if it samples from the model alone.

        Raises:
            ConfigError: If its checkpoint was deleted.
        """
        if not sampler.adapted:
            return None
        if sampler.lora is None:
            self.hold(sampler, self._read(sampler))
        elif sampler in self._resident:
            self._resident.move_to_end(sampler)
        return sampler.lora

    def drop(self, sampler: Sampler) -> None:
        """Forget a sampler's adapter."""
        self._resident.pop(sampler, None)
        sampler.lora = None
        self._written.discard(sampler)
        self._file(sampler).unlink(missing_ok=True)

    def _write(self, sampler: Sampler, lora: Lora) -> None:
        from safetensors.torch import save_file

        if sampler not in self._written:
            save_file(peft_tensors(lora.weights), self._file(sampler))
            self._written.add(sampler)

    def _read(self, sampler: Sampler) -> Lora:
        from safetensors.torch import load_file

        if sampler.path is not None:
            info, tensors = self._checkpoints.weights(sampler.path)
            return lora_from_peft(tensors, info.shape["rank"], self._device)
        tensors = load_file(self._file(sampler))
        return lora_from_peft(tensors, _rank(tensors), self._device)

    def _file(self, sampler: Sampler) -> Path:
        return self._folder / f"{id(sampler)}.safetensors"


def _rank(tensors: dict[str, Any]) -> int:
    return next(len(tensor) for name, tensor in tensors.items() if ".lora_A." in name)
