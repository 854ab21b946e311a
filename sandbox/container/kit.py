"""The kit: our own Python, mounted into containers whose image has none that can be trusted.

It runs the supervisor where the image has no Python, another C library, or nothing at all, and
where its files could have been changed: with a writable root, or in a snapshot. It is collected
once from the default image, by a container of that, into a volume, and so lies with the engine,
wherever that runs.
"""

from __future__ import annotations

import hashlib
import weakref

from vf.runtime.errors import ConfigError, SandboxError
from vf.sandbox.boot import source_of
from vf.sandbox.container.docker_engine import Engine, ImageMissing
from vf.sandbox.container.image import inspected, run_in
from vf.sandbox.container.profile import DEFAULT_IMAGE, KIT, kit_mount

LABEL = "vf.sandbox.kit"
_kits: weakref.WeakKeyDictionary[Engine, str] = weakref.WeakKeyDictionary()


class KitGone(SandboxError):
    """The volume with the kit is empty."""


def kit_of(engine: Engine, *, again: bool = False) -> str:
    """Return the volume with the kit, collected if need be. Blocks, at first for some seconds.

    Args:
        engine: Where.
        again: Look again whether it is there.

    Raises:
        ImageMissing: The default image is not on this machine.
        ConfigError: Its Python cannot be collected.
        SandboxError: The engine failed.
    """
    if engine in _kits and not again:
        return _kits[engine]
    found = inspected(engine, DEFAULT_IMAGE)
    if found is None:
        raise ImageMissing(
            f"other images run with the Python of {DEFAULT_IMAGE!r}, which is not on this machine: "
            "build it with `vf-rl sandbox build`"
        )
    script = source_of("inside/collect.py")
    name = f"vf-kit-{hashlib.sha256((found['Id'] + script).encode()).hexdigest()[:12]}"
    engine.call_now("create_volume", name, labels={LABEL: found["Id"]})
    command = ["python3", "-I", "-S", "-c", script, KIT]
    into = [kit_mount(name, read_only=False)]
    code, said = run_in(engine, found["Id"], command, user="0:0", Mounts=into)
    if code != 0:
        raise ConfigError(
            f"the Python of {DEFAULT_IMAGE!r} cannot be collected for use in other images; build "
            f"it again with `vf-rl sandbox build --fresh`: {said[-2000:]}"
        )
    _kits[engine] = name
    return name
