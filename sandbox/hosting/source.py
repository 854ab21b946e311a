"""Sources of sandboxes, from the settings in an environment's argument ``sandbox``."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, TypeAlias

from vf.runtime.errors import ConfigError, did_you_mean
from vf.sandbox.contract import OpenSandbox, Sandbox
from vf.sandbox.source import SandboxSource, UnpooledSource, given_source
from vf.sandbox.spec import SandboxSpec

if TYPE_CHECKING:
    pass

BACKENDS = ["auto", "docker", "bubblewrap", "local"]
_LOCAL = ["backend", "unsafe_local"]

# A backend's name, a table of settings, a source, or a function that opens a sandbox.
Sandboxes: TypeAlias = str | Mapping[str, Any] | SandboxSource | OpenSandbox


def sandbox_source(sandbox: Sandboxes) -> SandboxSource:
    """Return a source of sandboxes from settings, as an environment's argument ``sandbox`` gives.

    Args:
        sandbox: ``"auto"``, which is Docker where an engine answers and otherwise bubblewrap; or a
            table without a backend, which means the same, and Docker if it has a setting that only
            containers have; ``"docker"``; or a table with ``backend = "docker"`` and any of
            ``image``, ``build``, ``compose``, ``network``, ``allow``, ``runtime``, ``packages`` (a
            list, from PyPI), ``writable``, ``user``, ``workdir``, ``env``, and the fields of
            :class:`~vf.sandbox.bounds.Bounds` and :class:`~vf.sandbox.contract.Limits`; or
            ``"bubblewrap"``, namespaces of this machine without a container engine, or a table with
            ``backend = "bubblewrap"`` and any of ``allow``, ``workdir``, ``env``, ``pool``,
            ``concurrency``, ``max_containers`` and the limits; or
            ``{backend = "local", unsafe_local = true}``, which runs code on this machine,
            unprotected; or a function that returns a context that opens one; or a source, which
            is returned unchanged.

    Raises:
        ConfigError: If it is none of these, or a setting is invalid; names the setting.
    """
    if not isinstance(sandbox, str | Mapping):
        try:
            return given_source(sandbox)
        except TypeError:
            raise ConfigError(
                f'sandbox must be a name, such as "auto" or "docker", or a table of settings, '
                f"got {sandbox!r}"
            ) from None
    settings = {"backend": sandbox} if isinstance(sandbox, str) else sandbox
    backend = settings.get("backend", "auto")
    if backend not in BACKENDS:
        hint = did_you_mean(str(backend), BACKENDS)
        raise ConfigError(
            f'there is no sandbox {backend!r}.{hint} It must be "auto", "docker", "bubblewrap", or '
            '{backend = "local", unsafe_local = true}'
        )
    if backend == "auto":
        from vf.sandbox.hosting.bubblewrap_source import BUBBLEWRAP
        from vf.sandbox.hosting.choice import chosen

        backend = chosen(settings, BUBBLEWRAP)
    if backend == "docker":
        # Here: an environment that runs no code loads nothing of containers.
        from vf.sandbox.hosting.docker_source import DockerSource
        from vf.sandbox.hosting.settings import DOCKER, docker_settings

        _check_names("docker", settings, DOCKER)
        return DockerSource(docker_settings(settings))
    if backend == "bubblewrap":
        from vf.sandbox.hosting.bubblewrap_source import (
            BUBBLEWRAP,
            BubblewrapSource,
            bubblewrap_settings,
        )

        _check_names("bubblewrap", settings, BUBBLEWRAP)
        return BubblewrapSource(bubblewrap_settings(settings))
    _check_names("local", settings, _LOCAL)
    if settings.get("unsafe_local") is not True:
        raise ConfigError(
            "a local sandbox runs the model's code on this machine, unprotected. "
            'For trusted tests only: sandbox = {backend = "local", unsafe_local = true}'
        )
    return _Local(_open_local, 'backend = "local" runs on this machine as it is')


def _check_names(backend: str, settings: Mapping[str, Any], names: Sequence[str]) -> None:
    for name in settings:
        if name not in names:
            hint = did_you_mean(name, names)
            raise ConfigError(
                f"the {backend} sandbox has no setting {name!r}.{hint} It takes: {', '.join(names)}"
            )


@contextlib.asynccontextmanager
async def open_sandbox(
    sandbox: Sandboxes = "auto", spec: SandboxSpec | None = None
) -> AsyncIterator[Sandbox]:
    """Open one sandbox, and destroy it on the way out.

    Example::

        async with vf.open_sandbox() as box:
            result = await box.python("1 + 1")

    Args:
        sandbox: The settings that :func:`sandbox_source` takes. ``pool`` and ``concurrency`` have
            no effect on a single sandbox.
        spec: The spec of the sandbox, on top of the settings.

    Raises:
        ConfigError: If a setting is invalid, or the container engine is missing something.
        SandboxError: If the engine failed, or the image cannot be built or pulled.
    """
    source = sandbox_source(sandbox)
    # Without the pools that a source for many episodes has.
    alone = getattr(source, "open_alone", source.open)
    async with alone(spec) as box:
        yield box


class _Local(UnpooledSource):
    """Processes of this machine: no protection at all."""

    backend = "local"


def _open_local() -> AbstractAsyncContextManager[Sandbox]:
    from vf.sandbox.local import UnsafeLocalSandbox

    return UnsafeLocalSandbox(unsafe_local=True)
