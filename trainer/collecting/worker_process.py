"""One rollout worker as the trainer's process sees it, from start to end."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from vf.cluster.fleet import Command, Fleet, Handle, Resources
from vf.environments.runner import CLOSE_TIMEOUT
from vf.inference.leases import Leases
from vf.runtime.errors import PlacementError, RemoteError, TrainingError, WorkerLost
from vf.runtime.meeting import Listener
from vf.runtime.peers import Handler, Peer
from vf.runtime.workers import in_thread
from vf.trainer.collecting.worker_leases import Tenant
from vf.trainer.collecting.worker_setup import MODULE, WorkerSetup
from vf.trainer.processes.placement import size_of

T = TypeVar("T")

LOOK_SECONDS = 0.25  # between two looks whether a process has ended
END_SECONDS = 2.0  # for a process to have an exit status, once its connection is gone
STOP_SECONDS = 2 * CLOSE_TIMEOUT  # for a worker to close its environments, before it is killed
LOST_SECONDS = 5.0  # the same for one that pauses, or whose machine is lost
STALLS = 2  # times stall_timeout without a sign of life, after which a worker is lost
QUIET_SECONDS = 30.0  # without a sign of life, after which a note names the worker
LOG_BYTES = 2000  # of the output of a worker that cannot begin, in the message


async def run_worker(
    setup: WorkerSetup,
    *,
    fleet: Fleet,
    listener: Listener,
    leases: Leases,
    log: Path,
    handlers: Mapping[str, Handler],
    placed: Callable[[], None],
    ready: Callable[[Peer], None],
    note: Callable[[str], None],
) -> None:
    """Start a worker process, and keep the connection to it until it ends.

    However this ends, the process has ended too, and holds no lease.

    Args:
        setup: The worker's settings.
        fleet: The fleet that places it.
        listener: The listener that it connects to.
        leases: The inference engine's.
        log: File for its output.
        handlers: Functions that it may call, besides those of the leases.
        placed: Called once the process has been started.
        ready: Called with the connection once it can run rollouts.
        note: Called with what the user should know.

    Raises:
        WorkerLost: If nothing else is raised: the process ended, or can no longer be
            reached.
        PlacementError: If there was no place for it, for now, or its machine was lost.
        ConfigError: If the worker cannot make its environment.
        TrainingError: If the worker cannot begin for another reason.
    """
    name = f"rollout worker {setup.number}"
    timeout = setup.config.rollouts.startup_timeout
    # User code may hold up a worker's event loop. That is a stall, before it is a loss.
    silence = STALLS * setup.config.args.stall_timeout
    tenant, patience, began = Tenant(leases), STOP_SECONDS, False
    invitation = listener.invite(name)
    command = Command(["python", "-m", MODULE, str(silence)], invitation.environ, log)
    try:
        handle = await _place_worker(fleet, size_of(setup.config, "worker", 0), command)
    except BaseException:
        invitation.withdraw()
        raise
    placed()
    peer: Peer | None = None
    serving: asyncio.Task[None] | None = None
    listening: asyncio.Task[None] | None = None
    try:
        async with asyncio.timeout(timeout):
            # The deadline is this block's, which is over before that of `accepted`.
            connecting = invitation.accepted({**handlers, **tenant.handlers}, 2 * timeout, silence)
            peer = await _unless_ended(handle, name, asyncio.create_task(connecting))
            serving = asyncio.create_task(peer.serve())
            await _unless_ended(handle, name, asyncio.create_task(peer.call("begin", setup)))
        began = True
        ready(peer)
        listening = asyncio.create_task(_tell_silence(peer, name, silence, note))
        await _unless_ended(handle, name, serving)
        raise WorkerLost(peer.lost or f"{name} ended")
    except WorkerLost as error:
        status = await _status(handle)
        if handle.lost or (peer is not None and peer.silent):
            patience = LOST_SECONDS  # otherwise it may be at closing its environments
        if status is not None and status > 0 and not began:
            raise TrainingError(
                f"{name} {_ending(status)} before it could run rollouts:\n{_tail(log)}"
            ) from error
        if handle.lost:
            raise PlacementError(f"{name} {handle.lost}") from error
        raise WorkerLost(str(error) if status is None else f"{name} {_ending(status)}") from error
    except RemoteError as error:
        raise TrainingError(f"{name} cannot begin: {error}") from error
    except TimeoutError as error:
        raise TrainingError(
            f"{name} was not ready within rollouts.startup_timeout = {timeout:g} s; see {log}"
        ) from error
    finally:  # each step also where a cancellation ends the one before
        if listening is not None:
            listening.cancel()
        try:
            if peer is not None and serving is not None:
                await peer.close()
                await asyncio.wait([serving])
        finally:
            try:
                await tenant.leave()
            finally:
                await in_thread(handle.stop, patience)


async def _tell_silence(peer: Peer, name: str, silence: float, note: Callable[[str], None]) -> None:
    """Tell the user once each time when a worker gives no sign of life, until cancelled."""
    reported = False
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        if peer.quiet < QUIET_SECONDS:
            reported = False
        elif not reported:
            reported = True
            note(
                f"{name} has given no sign of life for {peer.quiet:.0f} s, and its rollouts wait: "
                "its process may be stopped, or a function of the environment holds up its event "
                f"loop. After {silence:g} s ({STALLS} times trainer.args.stall_timeout) it is "
                "replaced"
            )


async def _place_worker(fleet: Fleet, size: Resources, command: Command) -> Handle:
    """Place a worker. If this is cancelled, it does not wait: what is placed later is stopped."""
    placed: Future[Handle] = Future()

    def place() -> None:
        try:
            handle = fleet.place("worker", size, command)
        except BaseException as error:
            if placed.set_running_or_notify_cancel():
                placed.set_exception(error)
        else:
            if placed.set_running_or_notify_cancel():
                placed.set_result(handle)
            else:
                handle.stop()

    threading.Thread(target=place, name="vf-place-worker", daemon=True).start()
    try:
        return await asyncio.wrap_future(placed)
    except asyncio.CancelledError:
        if not placed.cancel() and placed.exception() is None:  # it was placed just now
            await in_thread(placed.result().stop)
        raise


async def _unless_ended(handle: Handle, name: str, work: asyncio.Task[T]) -> T:
    """Wait for work that needs a process; cancel it if this is cancelled.

    Raises:
        WorkerLost: If the process ended first.
    """
    try:
        while not work.done():
            await asyncio.wait([work], timeout=LOOK_SECONDS)
            # A machine that was lost does not close its connections.
            if not work.done() and (handle.poll() is not None or handle.lost):
                raise WorkerLost(f"{name} ended")
        return work.result()
    finally:
        work.cancel()


async def _status(handle: Handle) -> int | None:
    """Return the exit status of a process whose connection has gone, if it has one soon."""
    for _ in range(round(END_SECONDS / LOOK_SECONDS)):
        if handle.poll() is not None or handle.lost:
            break
        await asyncio.sleep(LOOK_SECONDS)
    return handle.poll()


def _ending(status: int) -> str:
    if status >= 0:
        return f"ended with exit status {status}"
    memory = ", maybe for lack of memory" if -status == signal.SIGKILL else ""
    return f"was ended by {signal.Signals(-status).name}{memory}"


def _tail(log: Path) -> str:
    """Return the end of a log."""
    try:
        return log.read_bytes()[-LOG_BYTES:].decode(errors="replace").strip()
    except OSError as error:
        return f"(its output, {log}, cannot be read: {error})"
