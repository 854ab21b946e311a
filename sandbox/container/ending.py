"""How a container ended, according to its engine, and whether something outside ended it."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

from vf.runtime.errors import HostLost
from vf.sandbox.container.docker_engine import NOT_THERE, Engine, EngineRefused
from vf.sandbox.frames import CONNECTION_ENDED

PATIENCE = 10.0  # seconds until an engine must have told how a container ended
SETTLING = 3.0  # seconds that a container may seem to run after its stream has ended


async def describe_end(engine: Engine, name: str, stderr: str) -> str:
    """Describe how a container ended.

    Args:
        engine: The engine that ran it.
        name: The container's name.
        stderr: Its output on stderr.

    Raises:
        SandboxError: If the engine does not respond.
    """
    parts = [stderr] if stderr else []
    state = await _state(engine, name)
    events = await _events(engine, name) or []
    code = (state or {}).get("ExitCode")
    if code is None:
        deaths = [attributes for action, attributes in events if action == "die"]
        code = deaths[-1].get("exitCode") if deaths else None
    if (state or {}).get("OOMKilled") or any(action == "oom" for action, _ in events):
        parts.append("its container ran out of memory")
    status = "gone" if state is None else state.get("Status")
    parts.append(f"its container is {status}" + ("" if code is None else f", exit code {code}"))
    return "; ".join(parts)


async def ended_from_outside(engine: Engine, name: str, *, cut: bool) -> str | None:
    """Return what ended a container, if that was not what ran in it; None otherwise.

    Only the engine's reports count: that it was told to kill or pause the container, and those of
    a HostLost below. That it reports no lack of memory proves nothing, since the last of those
    reports is often lost with the container.

    Args:
        engine: The engine that ran it.
        name: The container's name.
        cut: Whether its stream ended; otherwise its supervisor fell silent or sent nonsense.

    Raises:
        HostLost: If the engine does not respond, has restarted since, or the connection to it
            broke: the container ran on then, or ended because its end of the stream broke, too.
    """
    if engine.lost:
        raise HostLost("the engine did not answer for some time")
    try:
        async with asyncio.timeout(PATIENCE):
            state = await _state(engine, name)
            for _ in range(int(SETTLING / 0.1)):
                if not cut or state is None or not state.get("Running"):
                    break
                await asyncio.sleep(0.1)
                state = await _state(engine, name)
            if state is not None and state.get("Paused"):
                return "it was paused through the engine"
            if cut and state is not None and state.get("Running"):
                raise HostLost("its stream broke while it ran on")
            events = await _events(engine, name) or []
            if any(action == "kill" for action, _ in events):
                return "it was killed through the engine"
            codes = [attributes.get("exitCode") for action, attributes in events if action == "die"]
            if cut and str(CONNECTION_ENDED) in codes:
                raise HostLost("the connection to it broke on the way")
            created = any(action == "create" for action, _ in events)
            if not created and await _started_since(engine):
                raise HostLost("the engine has started again since")
    except TimeoutError:
        raise HostLost(f"the engine did not say within {PATIENCE:g} s what became of it") from None
    except EngineRefused as error:
        return f"the engine failed: {error}"
    return None


async def _started_since(engine: Engine) -> bool:
    """Return whether the engine has started since an event that it has forgotten.

    It keeps the last ones in memory: with fewer than that, it has all since its start. A listing
    ends at a time and so may lack the newest; but if there were any, the engine was full if the
    next listing has lost the oldest, and is full there otherwise.
    """
    kept = (await engine.features()).memory
    before, after = await _listed(engine), await _listed(engine)
    if kept is None or before is None or after is None:
        return False
    return len(after) < kept and before[:1] == after[:1]


async def _state(engine: Engine, name: str) -> dict[str, Any] | None:
    """Return the container's state; None where it is gone."""
    try:
        state: dict[str, Any] = (await engine.call("inspect_container", name))["State"]
    except EngineRefused as error:
        if error.status != NOT_THERE:
            raise
        return None
    return state


async def _events(engine: Engine, name: str) -> list[tuple[str, dict[str, str]]] | None:
    """Return the events of a container that the engine keeps: actions with their attributes."""
    listed = await _listed(engine, name)
    if listed is None:
        return None
    return [
        (str(event.get("Action", "")), (event.get("Actor") or {}).get("Attributes") or {})
        for event in listed
    ]


async def _listed(engine: Engine, name: str | None = None) -> list[dict[str, Any]] | None:
    """Return the events that the engine keeps of a container, or all, the oldest first.

    They outlive a container that removes itself. They end at the time of the engine's own clock:
    with a time in its future it would wait for more. None without that clock.
    """
    clock = (await engine.call("info")).get("SystemTime")
    if not clock:
        return None
    now = datetime.fromisoformat(clock).timestamp()
    kept = {"type": "container", "container": name} if name else {}
    return list(
        await engine.call("events", since="1", until=f"{now:.6f}", filters=kept, decode=True)
    )
