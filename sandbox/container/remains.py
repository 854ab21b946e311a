"""Containers of this process that are still there: they are removed when it ends, at the latest.

That is for those whose removal failed because their engine was away, and for those that are still
in use then. Where the process is killed, see reaper.py.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
from collections.abc import Iterator

from vf.runtime.errors import SandboxError
from vf.sandbox.container.docker_engine import NOT_THERE, Engine, EngineRefused
from vf.sandbox.container.reaper import this_process

_numbers = itertools.count(1)
_left: dict[str, tuple[int, Engine]] = {}  # name -> process, engine


def remember(name: str, engine: Engine) -> None:
    """Remove a container when the interpreter ends; called before it is made."""
    if not _left:
        atexit.unregister(_remove_all)
        atexit.register(_remove_all)
    _left[name] = (os.getpid(), engine)


def forget(name: str) -> None:
    """Know a container no more: it was removed."""
    _left.pop(name, None)


@contextlib.contextmanager
def named(engine: Engine) -> Iterator[str]:
    """Yield a name for a container that is removed on the way out. Blocks.

    Raises:
        SandboxError: The engine does not answer; the container is removed later.
    """
    name = f"vf-{this_process().run}-run-{next(_numbers)}"
    remember(name, engine)
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
    for name, (pid, engine) in list(_left.items()):
        if pid == os.getpid() and engine not in silent:
            try:
                engine.call_now("remove_container", name, force=True, v=True)
            except EngineRefused:
                continue  # it is gone already, say
            except SandboxError:
                silent.add(engine)
    _left.clear()
