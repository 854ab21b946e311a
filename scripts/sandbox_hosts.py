"""Docker engines on this machine that can be lost, as the sandbox hosts of a run."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Self

from own_dockerd import Dockerd

from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.hardening import DEFAULT_IMAGE


class SandboxHosts:
    """Engines, each in a network namespace of its own; they need root.

    Args:
        count: How many.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._engines: list[Dockerd] = []
        self._stack = ExitStack()

    @property
    def addresses(self) -> list[str]:
        """Of the engines."""
        return [str(each.address) for each in self._engines]

    def __enter__(self) -> Self:
        with self._stack as stack, contextlib.closing(Engine.connect()) as engine:
            for _ in range(self._count):
                folder = Path(tempfile.mkdtemp(prefix="vf-host-"))
                stack.callback(shutil.rmtree, folder, ignore_errors=True)
                dockerd = Dockerd(folder)
                stack.callback(dockerd.kill, alone=False)
                self._engines.append(dockerd)
                with dockerd.connected() as own:
                    own.copy_image(DEFAULT_IMAGE, engine)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def victims(self) -> dict[str, Callable[[], None]]:
        """Return what kills each engine with its containers; it starts again at once."""
        return {str(each.address): partial(_restart, each) for each in self._engines}

    def containers(self) -> list[str]:
        """Return the names of all containers."""
        return [name for each in self._engines for name in each.holds()["containers"]]


def _restart(dockerd: Dockerd) -> None:
    dockerd.kill(alone=False)
    dockerd.start()
