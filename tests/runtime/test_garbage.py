"""The garbage collector rests while rollouts run, and is as it was before when they are done."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from vf.runtime.garbage import fewer_collections, no_collections


class Loop:
    """Garbage that only the collector can find."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    before = gc.get_threshold()
    with fewer_collections():
        pass  # what the imports of other tests froze is free again
    gc.unfreeze()
    gc.set_threshold(700, 10, 10)
    yield
    with fewer_collections():
        pass
    gc.unfreeze()
    gc.enable()
    gc.set_threshold(*before)


def state() -> tuple[tuple[int, int, int], bool]:
    return gc.get_threshold(), gc.get_freeze_count() > 0


def test_inside_it_is_relaxed_and_afterwards_as_before() -> None:
    with fewer_collections():
        (young, *older), frozen = state()
        assert young > 700
        assert older == [10, 10]
        assert frozen
    assert state() == ((700, 10, 10), False)


def test_an_error_inside_restores_it_too() -> None:
    with pytest.raises(KeyError), fewer_collections():
        raise KeyError
    assert state() == ((700, 10, 10), False)


def test_blocks_that_overlap_restore_it_with_the_last() -> None:
    first, second = fewer_collections(), fewer_collections()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert state()[1]
    second.__exit__(None, None, None)
    assert state() == ((700, 10, 10), False)


def test_blocks_in_many_threads_restore_it() -> None:
    def enter_often() -> None:
        for _ in range(200):
            with fewer_collections():
                pass

    threads = [threading.Thread(target=enter_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert state() == ((700, 10, 10), False)


def test_garbage_made_inside_is_collected_inside() -> None:
    with fewer_collections():
        garbage = weakref.ref(Loop())
        assert garbage() is not None
        gc.collect()
        assert garbage() is None


def test_what_became_garbage_meanwhile_is_collected_afterwards() -> None:
    loop = Loop()
    garbage = weakref.ref(loop)
    with fewer_collections():
        del loop
        gc.collect()
        assert garbage() is not None
    gc.collect()
    assert garbage() is None


@pytest.mark.parametrize("young", [0, 50_000])
def test_limits_of_the_users_own_stay(young: int) -> None:
    gc.set_threshold(young, 5, 5)
    with fewer_collections():
        assert gc.get_threshold() == (young, 5, 5)
    assert gc.get_threshold() == (young, 5, 5)


def test_a_heap_that_the_user_froze_stays_frozen() -> None:
    gc.freeze()
    with fewer_collections():
        pass
    assert state() == ((700, 10, 10), True)


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    with fewer_collections():
        assert not gc.isenabled()
    assert not gc.isenabled()


@pytest.mark.parametrize("enabled", [True, False])
def test_nothing_is_collected_during_an_import_and_afterwards_as_before(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    with no_collections():
        assert not gc.isenabled()
    assert gc.isenabled() is enabled
    with pytest.raises(KeyError), no_collections():
        raise KeyError
    assert gc.isenabled() is enabled


def test_what_an_import_made_is_not_looked_at_until_the_rollouts_have_ended() -> None:
    with no_collections():
        loop = Loop()
    garbage = weakref.ref(loop)
    del loop
    gc.collect()
    assert garbage() is not None
    with fewer_collections():
        gc.collect()
        assert garbage() is not None
    assert state() == ((700, 10, 10), False)
    gc.collect()
    assert garbage() is None


def test_a_heap_that_the_user_froze_stays_frozen_after_an_import() -> None:
    gc.freeze()
    with no_collections():
        pass
    with fewer_collections():
        pass
    assert state() == ((700, 10, 10), True)


def test_an_import_while_rollouts_run_leaves_no_frozen_heap() -> None:
    with fewer_collections(), no_collections():
        pass
    assert state() == ((700, 10, 10), False)
