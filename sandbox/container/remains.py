"""What this process has made on engines and not yet removed: it is removed at exit at the latest.

That covers what is still in use then, and what could not be removed while its engine was away. For
a process that is killed, see reaper.py.
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
    """Schedule the removal of something at exit; called before it is made.

    Args:
        name: The name of a container, network or image.
        engine: The engine that has it.
        remove: A function that removes it, blocking.
    """
    if not _left:
        atexit.unregister(_remove_all)
        atexit.register(_remove_all)
    _left[name] = (os.getpid(), engine, remove)


def remember_container(name: str, engine: Engine) -> None:
    """Schedule the removal of a container at exit; called before it is made."""
    remember(name, engine, partial(engine.call_now, "remove_container", name, force=True, v=True))


def forget(name: str) -> None:
    """Cancel the removal at exit of what has been removed."""
    _left.pop(name, None)


@contextlib.contextmanager
def named(engine: Engine) -> Iterator[str]:
    """Yield a name for a container that is removed on the way out. Blocks.

    Raises:
        SandboxError: If the engine does not respond; the container is removed later.
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
