"""The kit: our own Python, mounted into containers whose image has no trustworthy one.

It runs the supervisor where the image has no Python, another C library, or nothing at all, and
where its files could have been changed: with a writable root, or in a snapshot. A container of the
default image collects it once into a volume, so that it is on the engine's machine.
"""

from __future__ import annotations

import hashlib
import weakref

from vf.runtime.errors import ConfigError, SandboxError
from vf.sandbox.boot import source_of
from vf.sandbox.container.docker_engine import Engine, ImageMissing
from vf.sandbox.container.hardening import DEFAULT_IMAGE, KIT, kit_mount
from vf.sandbox.container.image import inspected, run_in

LABEL = "vf.sandbox.kit"
_kits: weakref.WeakKeyDictionary[Engine, str] = weakref.WeakKeyDictionary()


class KitGone(SandboxError):
    """The volume with the kit is empty."""


def kit_of(engine: Engine, *, again: bool = False) -> str:
    """Return the volume with the kit, collected if need be. Blocks, at first for some seconds.

    Args:
        engine: The engine to collect it.
        again: Look again whether it is there.

    Raises:
        ImageMissing: If the default image is not on this machine.
        ConfigError: If its Python cannot be collected.
        SandboxError: If the engine failed.
    """
    if engine in _kits and not again:
        return _kits[engine]
    image_info = inspected(engine, DEFAULT_IMAGE)
    if image_info is None:
        raise ImageMissing(
            f"other images run with the Python of {DEFAULT_IMAGE!r}, which is not on this machine: "
            "build it with `vf-rl sandbox build`"
        )
    script = source_of("inside/collect.py")
    name = f"vf-kit-{hashlib.sha256((image_info['Id'] + script).encode()).hexdigest()[:12]}"
    engine.call_now("create_volume", name, labels={LABEL: image_info["Id"]})
    command = ["python3", "-I", "-S", "-c", script, KIT]
    mounts = [kit_mount(name, read_only=False)]
    code, output = run_in(engine, image_info["Id"], command, user="0:0", Mounts=mounts)
    if code != 0:
        raise ConfigError(
            f"the Python of {DEFAULT_IMAGE!r} cannot be collected for use in other images; build "
            f"it again with `vf-rl sandbox build --fresh`: {output[-2000:]}"
        )
    _kits[engine] = name
    return name
