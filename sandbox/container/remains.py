"""What this process has made on engines and not yet removed: that is done when it ends, at last.

So it is for what is still in use then, and where the engine was away when it should have been
removed. Where the process is killed, see reaper.py.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from functools import partial

from vf.runtime.errors import SandboxError
from vf.sandbox.container.docker_engine import NOT_THERE, Engine, EngineRefused
from vf.sandbox.container.reaper import this_process

_numbers = itertools.count(1)
_left: dict[str, tuple[int, Engine, Callable[[], object]]] = {}  # by name; with the process


def remember(name: str, engine: Engine, remove: Callable[[], object]) -> None:
    """Have something removed when the interpreter ends; called before it is made.

    Args:
        name: A container's, network's or image's.
        engine: Where.
        remove: Removes it, blocking.
    """
    if not _left:
        atexit.unregister(_remove_all)
        atexit.register(_remove_all)
    _left[name] = (os.getpid(), engine, remove)


def remember_container(name: str, engine: Engine) -> None:
    """Have a container removed when the interpreter ends; called before it is made."""
    remember(name, engine, partial(engine.call_now, "remove_container", name, force=True, v=True))


def forget(name: str) -> None:
    """Know something no more: it was removed."""
    _left.pop(name, None)


@contextlib.contextmanager
def named(engine: Engine) -> Iterator[str]:
    """Yield a name for a container that is removed on the way out. Blocks.

    Raises:
        SandboxError: The engine does not answer; the container is removed later.
    """
    name = f"vf-{this_process().run}-run-{next(_numbers)}"
    remember_container(name, engine)
    try:
        yield name
    finally:
        try:
            engine.call_now("remove_container", name, force=True, v=True)
        except EngineRefused as error:
            if error.status != NOT_THERE:  # it could not be made
                raise
        forget(name)


def _remove_all() -> None:
    silent = set()  # engines that no longer answer: each is waited for only once
    for pid, engine, remove in reversed(list(_left.values())):  # what is newer may use the older
        if pid == os.getpid() and engine not in silent:
            try:
                remove()
            except EngineRefused:
                continue  # it is gone already, say
            except SandboxError:
                silent.add(engine)
    _left.clear()
