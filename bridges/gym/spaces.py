"""The space of all texts."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from multiprocessing.context import BaseContext
from typing import Any, overload

import numpy as np
from gymnasium.spaces import Space
from gymnasium.vector.utils import (
    create_empty_array,
    create_shared_memory,
    read_from_shared_memory,
    write_to_shared_memory,
)

try:
    from gymnasium.spaces.utils import is_space_dtype_shape_equiv
    from gymnasium.wrappers.utils import create_zero_array
except ImportError:  # before 1.0, which asks for neither
    _HAS_BOTH = False
else:
    _HAS_BOTH = True

LONGEST_SAMPLE = 32  # characters
CAPACITY = 2**20  # bytes of one text in the memory that processes share
_LENGTH = 4  # bytes that hold the length
# Blocks that samples are drawn from, first to last code point: every width that UTF-8 has.
_BLOCKS = ((0x20, 0x7E), (0xA0, 0x17F), (0x391, 0x3C9), (0x4E00, 0x9FFF), (0x1F600, 0x1F64F))


class UnicodeText(Space[str]):
    """Every ``str`` is in it: any length, any characters.

    Gymnasium's ``Text`` lists its characters and has a longest length, and what a model writes
    has neither. All of these spaces are equal.

    Args:
        seed: Seed of :meth:`sample`.
    """

    def __init__(self, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(dtype=None, seed=seed)

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """Draw a text of up to 32 characters from several alphabets.

        Raises:
            ValueError: If a mask is given; there is nothing to mask.
        """
        if mask is not None or probability is not None:
            raise ValueError("UnicodeText.sample takes neither a mask nor probabilities")
        length = int(self.np_random.integers(LONGEST_SAMPLE + 1))
        blocks = self.np_random.integers(len(_BLOCKS), size=length)
        return "".join(
            chr(int(self.np_random.integers(_BLOCKS[block][0], _BLOCKS[block][1] + 1)))
            for block in blocks
        )

    def contains(self, x: Any) -> bool:
        """Return whether it is a text."""
        return isinstance(x, str)

    @property
    def is_np_flattenable(self) -> bool:
        """A text has no fixed length, so it is no array."""
        return False

    def __repr__(self) -> str:
        return "UnicodeText()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnicodeText)

    def __hash__(self) -> int:
        return hash(UnicodeText)


# Functions of a space for Gymnasium's vector environments and wrappers.


if _HAS_BOTH:

    @is_space_dtype_shape_equiv.register(UnicodeText)
    def _alike(space_1: UnicodeText, space_2: Space[Any]) -> bool:
        return isinstance(space_2, UnicodeText)

    @create_zero_array.register(UnicodeText)
    def _zero(space: UnicodeText) -> str:  # type: ignore[misc]  # the fallback is generic
        return ""


@create_empty_array.register(UnicodeText)
def _empty(space: UnicodeText, n: int = 1, fn: Any = None) -> tuple[str, ...]:
    return ("",) * n


@create_shared_memory.register(UnicodeText)
def _create(space: UnicodeText, n: int = 1, ctx: BaseContext | None = None) -> list[Any]:
    assert ctx is not None
    return [ctx.Array(ctypes.c_char, _LENGTH + CAPACITY) for _ in range(n)]


@write_to_shared_memory.register(UnicodeText)
def _write(space: UnicodeText, index: int, value: str, shared_memory: list[Any]) -> None:
    encoded = value.encode("utf-8", "surrogatepass")
    if len(encoded) > CAPACITY:
        raise ValueError(
            f"an observation of {len(encoded)} bytes does not fit into the {CAPACITY} that "
            "processes share: pass shared_memory=False to the AsyncVectorEnv"
        )
    memory = memoryview(shared_memory[index].get_obj()).cast("B")
    memory[:_LENGTH] = len(encoded).to_bytes(_LENGTH, "little")
    memory[_LENGTH : _LENGTH + len(encoded)] = encoded


@read_from_shared_memory.register(UnicodeText)
def _read(space: UnicodeText, shared_memory: list[Any], n: int = 1) -> SharedTexts:
    return SharedTexts(shared_memory)


class SharedTexts(Sequence[str]):
    """A view of the texts in shared memory, which Gymnasium requests once.

    A copy is a tuple of the texts at that time.
    """

    def __init__(self, arrays: list[Any]) -> None:
        self._arrays = arrays

    def __len__(self) -> int:
        return len(self._arrays)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...

    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        if isinstance(index, slice):
            return tuple(_stored(array) for array in self._arrays[index])
        return _stored(self._arrays[index])

    def __deepcopy__(self, memo: object) -> tuple[str, ...]:
        return tuple(self)


def _stored(array: Any) -> str:
    memory = memoryview(array.get_obj()).cast("B")
    length = int.from_bytes(memory[:_LENGTH], "little")
    return bytes(memory[_LENGTH : _LENGTH + length]).decode("utf-8", "surrogatepass")
