"""The trainer's processes on a cluster: placed together, and again if one of them is lost."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from vf.cluster.fleet import HOST, PORT, Command, Fleet, Handle, Resources
from vf.runtime.command import DONE, FAILED, PEER_LOST
from vf.runtime.errors import PlacementError
from vf.trainer.processes.launch import OWN_HOST

LOOK_SECONDS = 0.25
FIND_SECONDS = 60.0  # until it is known which rank was lost, once another has missed it
END_SECONDS = 30.0  # for the others once the first has ended well
STOP_SECONDS = 35.0  # for a rank to save its last step; a launcher waits 30 s for its process
HOUR = 3600.0


@dataclass(frozen=True)
class Ranks:
    """What is started, on machines that a fleet chooses.

    Attributes:
        count: How many processes.
        resources: The resources of each.
        argv: The arguments of `vf-rl`.
        accelerate_config: How the processes share the model.
        env: Variables of each.
        again: Returns the arguments of a later start; None where they are the same.
    """

    count: int
    resources: Resources
    argv: Sequence[str]
    accelerate_config: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    again: Callable[[], Sequence[str]] | None = None


def run_ranks(
    fleet: Fleet, ranks: Ranks, *, restarts_per_hour: int, say: Callable[[str], None]
) -> int:
    """Run the trainer's processes to their end.

    If one of them is killed or its machine is lost, the others are ended, and all are started
    again, to resume the run from its last checkpoint.

    Args:
        fleet: The fleet, with places reserved for the processes.
        ranks: The processes.
        restarts_per_hour: The most restarts within an hour.
        say: Called with what happened.

    Returns:
        The exit code of the run.

    Raises:
        ConfigError: If the processes cannot be started.
    """
    restarts: list[float] = []
    while True:
        handles: list[Handle] = []
        try:
            place(fleet, ranks, handles)
            code, lost = _until_end(handles)
        except PlacementError as error:
            code, lost = FAILED, str(error)
        finally:
            _stop(handles)
        if lost is None:
            return code
        now = time.monotonic()
        restarts = [then for then in restarts if now - then < HOUR]
        if len(restarts) >= restarts_per_hour:
            say(
                f"{lost}. The trainer was started again {len(restarts)} times within the last "
                f"hour, and cluster.restarts_per_hour = {restarts_per_hour}"
            )
            return FAILED
        restarts.append(now)
        say(f"{lost}; the trainer starts again from the last checkpoint")
        if ranks.again is not None:
            ranks = replace(ranks, argv=ranks.again())


def place(fleet: Fleet, ranks: Ranks, handles: list[Handle]) -> None:
    """Place all processes, the first one first: it is where the others meet it.

    Args:
        fleet: The fleet.
        ranks: The processes.
        handles: Receives what was placed, also if the rest fails.

    Raises:
        ConfigError: If the processes cannot be started.
        PlacementError: If a machine was lost.
    """
    main = ["python", "-m", "vf.trainer.commands.main"]
    variables = {**ranks.env, OWN_HOST: HOST}
    if ranks.count == 1:
        handles.append(
            fleet.place("rank", ranks.resources, Command([*main, *ranks.argv], variables))
        )
        return
    host, port = HOST, PORT
    for rank in range(ranks.count):
        meeting = [str(ranks.count), str(rank), host, port, ranks.accelerate_config or ""]
        argv = ["python", "-m", "vf.trainer.processes.rank", *meeting, *ranks.argv]
        handle = fleet.place("rank", ranks.resources, Command(argv, variables))
        handles.append(handle)
        if rank == 0:
            host, port = handle.host, str(handle.port)


def _until_end(handles: Sequence[Handle]) -> tuple[int, str | None]:
    """Wait for the end of all processes, or of the first that ends badly.

    Returns:
        The exit code, and which process was lost, if that is why.
    """
    missed: float | None = None  # when a process said that another one is gone
    ended: float | None = None  # when the first one ended well
    while True:
        codes = [handle.poll() for handle in handles]
        for rank, (handle, code) in enumerate(zip(handles, codes, strict=True)):
            if handle.lost is not None:
                return FAILED, f"trainer process {rank} on {handle.host} was lost: {handle.lost}"
            if code is not None and code < 0:
                name = signal.Signals(-code).name
                return FAILED, f"trainer process {rank} on {handle.host} was killed by {name}"
        if bad := [code for code in codes if code not in (None, DONE, PEER_LOST)]:
            return bad[0] or FAILED, None
        now = time.monotonic()
        if PEER_LOST in codes:
            missed = missed or now
            if now > missed + FIND_SECONDS:
                return FAILED, "a trainer process no longer answered the others"
        elif codes[0] == DONE:
            ended = ended or now
            if None not in codes or now > ended + END_SECONDS:
                return DONE, None
        time.sleep(LOOK_SECONDS)


def _stop(handles: Sequence[Handle]) -> None:
    """End all processes, at the same time."""
    stopping = [threading.Thread(target=handle.stop, args=[STOP_SECONDS]) for handle in handles]
    for thread in stopping:
        thread.start()
    for thread in stopping:
        thread.join()
