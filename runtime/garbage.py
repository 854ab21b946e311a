"""Keeping Python's garbage collector out of the way of imports and of many rollouts."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_YOUNG = 20_000  # objects made before the young ones are looked through; Python's own is 700

_lock = threading.Lock()
_inside = 0
_frozen = False  # by this module, not by the user
_undo: list[Callable[[], None]] = []


@contextmanager
def fewer_collections() -> Iterator[None]:
    """Collect garbage less often while the block runs, and only what was made inside.

    A collection looks at every object that it is about, garbage or not. Rollouts in flight keep
    thousands of young objects alive, and torch alone has hundreds of thousands of old ones: that
    took a third of the time of a rollout. What the user has set (a collector that is off, other
    limits, a frozen heap) stays.
    """
    global _inside
    with _lock:
        _inside += 1
        if _inside == 1:
            _relax()
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            while _inside == 0 and _undo:
                _undo.pop()()


@contextmanager
def no_collections() -> Iterator[None]:
    """Collect no garbage while the block runs, such as one that imports torch and transformers.

    They create hundreds of thousands of objects that all stay, and the collector would look at
    each of them several times, the first times as soon as the block has ended. So it looks at none
    of them until the rollouts have ended (:func:`fewer_collections`).
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            with _lock:
                _freeze()
            gc.enable()


def _relax() -> None:
    young, *older = gc.get_threshold()
    if 0 < young < _YOUNG:
        gc.set_threshold(_YOUNG, *older)
        _undo.append(lambda: gc.set_threshold(young, *older))
    _freeze()
    if _frozen:
        _undo.append(_unfreeze)


def _freeze() -> None:
    global _frozen
    if _frozen or not gc.get_freeze_count():
        gc.freeze()
        _frozen = True


def _unfreeze() -> None:
    global _frozen
    gc.unfreeze()
    _frozen = False
