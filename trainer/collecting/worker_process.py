"""One rollout worker as the trainer's process sees it, from its start to its end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from vf.cluster.fleet import Command, Fleet, Handle, Resources
from vf.environments.runner import CLOSE_TIMEOUT
from vf.inference.leases import Leases
from vf.runtime.errors import TrainingError, WorkerLost
from vf.runtime.meeting import Listener
from vf.runtime.peers import Handler, Peer, RemoteError
from vf.trainer.collecting.worker_leases import Tenant
from vf.trainer.collecting.worker_setup import MODULE, WorkerSetup
from vf.trainer.processes.fleets import size_of

LOOK_SECONDS = 0.25  # between two looks whether a process has ended
END_SECONDS = 2.0  # for a process to have an exit status, once its connection is gone
STOP_SECONDS = 2 * CLOSE_TIMEOUT  # for a worker to close its environments, before it is killed
LOST_SECONDS = 5.0  # the same for one that can no longer be reached
LOG_BYTES = 2000  # of the output of a worker that cannot begin, in the message


async def run_worker(
    setup: WorkerSetup,
    *,
    fleet: Fleet,
    listener: Listener,
    leases: Leases,
    log: Path,
    handlers: Mapping[str, Handler],
    ready: Callable[[Peer], None],
) -> None:
    """Start a worker process, and keep the connection to it until it ends.

    However this ends, the process has ended too, and holds no lease.

    Args:
        setup: What it runs rollouts with.
        fleet: Places it.
        listener: What it connects to.
        leases: The inference engine's.
        log: File for its output.
        handlers: What it may call, beside the leases.
        ready: Called with the connection once it can run rollouts.

    Raises:
        WorkerLost: Always, if nothing else is raised: the process ended, or can no longer be
            reached.
        PlacementError: There was no place for it, for now.
        ConfigError: It cannot make its environment.
        TrainingError: It cannot begin for another reason.
    """
    name = f"rollout worker {setup.number}"
    timeout = setup.config.rollouts.startup_timeout
    # User code may hold up a worker's event loop. That is a stall, before it is a loss.
    silence = setup.config.args.stall_timeout
    tenant, patience, began = Tenant(leases), STOP_SECONDS, False
    invitation = listener.invite(name)
    command = Command(["python", "-m", MODULE, str(silence)], invitation.environ, log)
    handle = await _place(fleet, size_of(setup.config, "worker", 0), command)
    serving: asyncio.Task[None] | None = None
    try:
        async with asyncio.timeout(timeout):
            # The deadline is this block's, which is over before that of `accepted`.
            connecting = invitation.accepted({**handlers, **tenant.handlers}, 2 * timeout, silence)
            peer = await _unless_ended(handle, connecting)
            serving = asyncio.create_task(peer.serve())
            await peer.call("begin", setup)
        began = True
        ready(peer)
        await asyncio.shield(serving)
        raise WorkerLost(peer.lost or "it ended")
    except WorkerLost as error:
        patience = LOST_SECONDS
        status = await _status(handle)
        if status is not None and status > 0 and not began:
            raise TrainingError(
                f"{name} {_ending(status)} before it could run rollouts:\n{_tail(log)}"
            ) from error
        raise WorkerLost(f"{name} {handle.lost or _ending(status) or error}") from error
    except RemoteError as error:
        raise TrainingError(f"{name} cannot begin: {error}") from error
    except TimeoutError as error:
        raise TrainingError(
            f"{name} was not ready within rollouts.startup_timeout = {timeout:g} s; see {log}"
        ) from error
    finally:
        if serving is not None:
            await peer.close()
            await asyncio.wait([serving])
        await tenant.leave()
        await asyncio.to_thread(handle.stop, patience)


async def _place(fleet: Fleet, size: Resources, command: Command) -> Handle:
    """Place a worker; if this is cancelled meanwhile, end what was placed."""
    placing = asyncio.create_task(asyncio.to_thread(fleet.place, "worker", size, command))
    try:
        return await asyncio.shield(placing)
    except asyncio.CancelledError:
        await asyncio.wait([placing])
        if placing.exception() is None:
            await asyncio.to_thread(placing.result().stop)
        raise


async def _unless_ended(handle: Handle, connecting: Coroutine[Any, Any, Peer]) -> Peer:
    """Wait for a process to connect.

    Raises:
        WorkerLost: It ended first.
    """
    peer = asyncio.create_task(connecting)
    try:
        while not peer.done():
            if handle.poll() is not None or handle.lost:
                raise WorkerLost("it ended before it connected")
            await asyncio.wait([peer], timeout=LOOK_SECONDS)
        return peer.result()
    finally:
        peer.cancel()


async def _status(handle: Handle) -> int | None:
    """Return the exit status of a process whose connection has gone, if it has one soon."""
    for _ in range(round(END_SECONDS / LOOK_SECONDS)):
        if handle.poll() is not None or handle.lost:
            break
        await asyncio.sleep(LOOK_SECONDS)
    return handle.poll()


def _ending(status: int | None) -> str:
    if status is None:
        return ""
    if status >= 0:
        return f"ended with exit status {status}"
    memory = ", maybe for want of memory" if -status == signal.SIGKILL else ""
    return f"was ended by {signal.Signals(-status).name}{memory}"


def _tail(log: Path) -> str:
    """Return the end of a log."""
    try:
        return log.read_bytes()[-LOG_BYTES:].decode(errors="replace").strip()
    except OSError as error:
        return f"(its output, {log}, cannot be read: {error})"
