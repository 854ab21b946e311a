"""The space of texts, as Gymnasium's own code uses a space."""

from __future__ import annotations

import copy
import json
import multiprocessing
import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Dict, Text, Tuple
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector.utils import (
    batch_space,
    concatenate,
    create_empty_array,
    create_shared_memory,
    iterate,
    read_from_shared_memory,
    write_to_shared_memory,
)
from gymnasium.wrappers.utils import create_zero_array

from vf.bridges.gym.spaces import CAPACITY, UnicodeText

TEXTS = ["", "plain", "zwei\nZeilen", "日本語", "🙂 naïve", "\x00", "\ud83d", "x" * 100_000]


@pytest.mark.parametrize("text", TEXTS)
def test_every_text_is_in_it(text: str) -> None:
    assert text in UnicodeText()
    assert np.str_(text) in UnicodeText()


@pytest.mark.parametrize("other", [None, 3, b"bytes", ["a"], np.array("a")])
def test_nothing_else_is(other: object) -> None:
    assert other not in UnicodeText()


def test_samples_follow_the_seed_and_reach_beyond_ascii() -> None:
    first, second, third = UnicodeText(seed=1), UnicodeText(seed=1), UnicodeText(seed=2)
    samples = [first.sample() for _ in range(50)]
    assert samples == [second.sample() for _ in range(50)]
    assert samples != [third.sample() for _ in range(50)]
    assert all(sample in first for sample in samples)
    joined = "".join(samples)
    assert any(ord(c) > 0xFFFF for c in joined)
    assert any(c.isascii() for c in joined)
    assert joined.encode().decode() == joined
    first.seed(1)
    assert first.sample() == samples[0]
    for wrong in ({"mask": 1}, {"probability": 1}):
        with pytest.raises(ValueError, match="neither a mask"):
            first.sample(**wrong)


def test_all_are_equal_and_survive_copies() -> None:
    space = UnicodeText(seed=3)
    for other in (UnicodeText(), copy.deepcopy(space), pickle.loads(pickle.dumps(space))):
        assert other == space
        assert hash(other) == hash(space)
    assert space != Text(5)
    assert pickle.loads(pickle.dumps(space)).sample() == copy.deepcopy(space).sample()
    assert is_space_dtype_shape_equiv(space, UnicodeText())
    assert not is_space_dtype_shape_equiv(space, Text(5))
    assert not space.is_np_flattenable
    assert eval(repr(space)) == space


def test_samples_survive_json() -> None:
    space = UnicodeText(seed=1)
    samples = [space.sample() for _ in range(5)]
    assert space.from_jsonable(json.loads(json.dumps(space.to_jsonable(samples)))) == samples


def test_it_can_be_batched_and_nested() -> None:
    space = UnicodeText(seed=1)
    batched = batch_space(space, 3)
    assert batched == Tuple((UnicodeText(),) * 3)
    actions = batched.sample()
    assert list(iterate(batched, actions)) == list(actions)
    empty: Any = create_empty_array(space, 3)
    assert concatenate(space, actions, empty) == actions
    assert create_empty_array(space, 2) == ("", "")
    assert create_zero_array(space) in space
    nested = Dict({"said": space, "pair": Tuple((space, space))})
    assert nested.contains(nested.sample())


def test_texts_cross_processes_in_shared_memory() -> None:
    space = UnicodeText()
    context: Any = multiprocessing.get_context()
    write: Any = write_to_shared_memory
    memory = create_shared_memory(space, n=len(TEXTS), ctx=context)
    shared: Any = read_from_shared_memory(space, memory, n=len(TEXTS))
    assert tuple(shared) == ("",) * len(TEXTS)
    for index, text in enumerate(TEXTS):
        write(space, index, text, memory)
    assert list(shared) == TEXTS
    assert shared[-2:] == tuple(TEXTS[-2:])
    kept = copy.deepcopy(shared)
    write(space, 1, "ä", memory)
    assert (shared[1], kept[1]) == ("ä", "plain")
    with pytest.raises(ValueError, match="shared_memory=False"):
        write(space, 0, "x" * (CAPACITY + 1), memory)
