"""Remove what dead runs left behind, and nothing else.

Containers end by themselves when their client goes away, and at the end of their lifetime at the
latest. What is left is what an engine or a machine lost while it was going down: the reaper removes
it at the start of a run. It touches only containers with our labels whose owner is provably dead,
so runs on one engine leave each other alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

from vf.runtime.errors import SandboxError
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.owner import MARK, PREFIX, this_host, this_process, why_dead

log = logging.getLogger("vf.sandbox")


@dataclass(frozen=True, slots=True)
class Found:
    """A container of ours, whoever made it.

    Attributes:
        id: The engine's id.
        name: Its name.
        state: The engine's word: created, running, exited, dead, ...
        run: Whose it is.
        pid: The process that made it, on its machine.
        mine: Whether this process made it.
        expires: When it ends by itself, seconds since the epoch; None where its label is broken.
        dead: Why it is provably nobody's; None where it may be in use.
    """

    id: str
    name: str
    state: str
    run: str
    pid: str
    mine: bool
    expires: float | None
    dead: str | None


async def find(engine: Engine) -> list[Found]:
    """List our containers in every state.

    Raises:
        SandboxError: The engine does not answer.
    """
    listed = await engine.call("containers", all=True, filters={"label": f"{MARK}=1"})
    now, host, me = time.time(), this_host(), this_process()
    found = []
    for item in listed:
        labels = item.get("Labels") or {}
        run = labels.get(PREFIX + "run", "")
        try:
            expires = float(labels[PREFIX + "expires"])
        except (KeyError, ValueError):
            expires = None
        found.append(
            Found(
                id=item["Id"],
                name=(item.get("Names") or ["/?"])[0].lstrip("/"),
                state=item.get("State", "?"),
                run=run,
                pid=labels.get(PREFIX + "pid", "?"),
                mine=run == me.run,
                expires=expires,
                dead=why_dead(labels, host=host, now=now),
            )
        )
    return found


async def reap(engine: Engine) -> list[Found]:
    """Remove every container whose owner is provably dead; return those that were removed.

    Raises:
        SandboxError: The engine does not answer.
    """
    return await _remove(engine, [item for item in await find(engine) if item.dead])


async def remove_own(engine: Engine) -> list[Found]:
    """Remove every container that this process made; return those that were removed.

    Raises:
        SandboxError: The engine does not answer.
    """
    return await _remove(engine, [item for item in await find(engine) if item.mine])


async def _remove(engine: Engine, condemned: list[Found]) -> list[Found]:
    ends = await asyncio.gather(
        *(engine.remove(item.id) for item in condemned), return_exceptions=True
    )
    removed = []
    for item, end in zip(condemned, ends, strict=True):
        if isinstance(end, SandboxError):
            log.warning("container %s could not be removed: %s", item.name, end)
        elif isinstance(end, BaseException):
            raise end
        else:
            removed.append(item)
            log.info("removed container %s: %s", item.name, item.dead or "its run is over")
    return removed
