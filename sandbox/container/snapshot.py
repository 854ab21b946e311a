"""The state of a container's files as an image, which lives as long as the process that made it."""

from __future__ import annotations

import itertools
import logging
import time
from functools import partial

from vf.runtime.errors import SandboxError
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.profile import Profile
from vf.sandbox.container.reaper import PREFIX, this_host, this_process, why_dead
from vf.sandbox.container.remains import remember

log = logging.getLogger("vf.sandbox")

REPOSITORY = "vf-snapshot"
LABEL = f"{PREFIX}snapshot"
LIFETIME = 30 * 86400.0  # seconds: where the process cannot be looked up
_numbers = itertools.count(1)


async def take_snapshot(engine: Engine, container: str, profile: Profile) -> str:
    """Return the name of an image with a container's files; it is paused meanwhile.

    Raises:
        SandboxError: The engine failed.
    """
    tag = f"{this_process().run}-{next(_numbers)}"
    name = f"{REPOSITORY}:{tag}"
    remember(name, engine, partial(engine.call_now, "remove_image", name, force=True))
    # What the container itself has is the supervisor's.
    config = {
        "Labels": {**this_process().labels(LIFETIME), LABEL: "1"},
        "Env": [f"{name}={value}" for name, value in profile.code_env.items()],
        "User": profile.code_user,
        "WorkingDir": profile.code_workdir,
        "Entrypoint": [],
        "Cmd": [],
    }
    await engine.call("commit", container, repository=REPOSITORY, tag=tag, conf=config)
    return name


async def reap_snapshots(engine: Engine) -> None:
    """Remove the snapshots of processes that are provably dead.

    Raises:
        SandboxError: The engine does not answer.
    """
    now, host = time.time(), this_host()
    for item in await engine.call("images", filters={"label": f"{LABEL}=1"}):
        why = why_dead(item.get("Labels") or {}, host=host, now=now)
        for name in (item.get("RepoTags") or ()) if why else ():
            # An image that was built on one has its labels, too.
            if name.startswith(f"{REPOSITORY}:"):
                try:
                    await engine.call("remove_image", name)
                    log.info("removed the snapshot %s: %s", name, why)
                except SandboxError as error:
                    log.warning("the snapshot %s could not be removed: %s", name, error)
