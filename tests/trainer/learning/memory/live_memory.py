"""The bytes of tensors that are alive at once, on a device that does not count them."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class LiveMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the storages of all tensors that operators make, until they are freed.

    What an operator takes for a moment inside of itself does not count.

    Attributes:
        now: Bytes that are alive.
        peak: The most so far.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._known: set[int] = set()

    def hold(self, *tensors: torch.Tensor) -> None:
        """Count tensors that were there before."""
        for tensor in tensors:
            self._add(tensor)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        for each in found if isinstance(found, tuple | list) else [found]:
            if isinstance(each, torch.Tensor):
                self._add(each)
        return found

    def _add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = id(storage)
        if key not in self._known:
            self._known.add(key)
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._remove, key, storage.nbytes())

    def _remove(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size
