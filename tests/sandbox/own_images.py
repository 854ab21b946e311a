"""The images that tests build: called so that they can be told from others, and removed."""

from __future__ import annotations

import contextlib
import os

from vf.runtime.errors import SandboxError
from vf.sandbox.container.docker_engine import Engine

REPOSITORY = f"vf-test-pools-{os.getpid()}"  # other processes of the tests remove their own


def remove_images(engine: Engine) -> None:
    """Remove those that tests have built, by their names."""
    for item in engine.call_now("images", name=REPOSITORY):
        for tag in item["RepoTags"]:
            with contextlib.suppress(SandboxError):
                engine.call_now("remove_image", tag, force=True)
