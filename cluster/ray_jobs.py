"""A run submitted to a Ray cluster from outside of it, by the HTTP API for jobs."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from vf.cluster.ray_cluster import load_ray
from vf.runtime.command import DONE, FAILED
from vf.runtime.errors import ConfigError, InfrastructureError

INTERRUPTED = 130
RETRY_SECONDS = 2.0
START_SECONDS = 60.0  # for which a cluster that has just been started is asked again
NOT_YET = "No available agent"  # what Ray answers until a machine can run jobs
AWAY_SECONDS = 300.0  # for which a cluster that no longer answers is asked again


def submit_job(
    address: str, command: str, runtime_env: Mapping[str, Any], *, say: Callable[[str], None]
) -> int:
    """Submit a command, print its output until it ends, and return its exit code.

    Ctrl-C ends the printing and not the job.

    Args:
        address: ``http://HEAD:8265``.
        command: For a shell on the cluster's head.
        runtime_env: Ray's ``runtime_env`` for the job; a local ``working_dir`` is uploaded.
        say: Called with what the user should know.

    Raises:
        ConfigError: If nothing answers there, or Ray refuses the job.
        InfrastructureError: If the cluster no longer answers. The job may still run.
    """
    load_ray()
    try:
        from ray.job_submission import JobSubmissionClient

        client = JobSubmissionClient(address)
    except (ImportError, RuntimeError, ConnectionError) as error:
        raise ConfigError(
            f"cluster.address = {address!r}: {_flat(error)}. It must be the URL of the head's "
            "dashboard, usually on port 8265, and both sides need 'ray[default]'"
        ) from error
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            job = client.submit_job(entrypoint=command, runtime_env=dict(runtime_env))
            break
        except (RuntimeError, ValueError) as error:
            if NOT_YET not in str(error) or time.monotonic() > deadline:
                raise ConfigError(f"the Ray cluster refuses the run: {_flat(error)}") from error
        time.sleep(RETRY_SECONDS)
    say(f"submitted to {address} as {job}; Ctrl-C leaves it running")
    again = f"to see it again: ray job logs --address {address} --follow {job}"
    try:
        return asyncio.run(_follow(client, job))
    except TimeoutError as error:
        raise InfrastructureError(
            f"the Ray cluster at {address} has not answered for {AWAY_SECONDS:.0f} s ({error}); "
            f"{job} may still run; {again}"
        ) from error
    except KeyboardInterrupt:
        say(f"{job} runs without this terminal")
        say(again)
        say(f"to end it: ray job stop --address {address} {job}")
        return INTERRUPTED


async def _follow(client: Any, job: str) -> int:
    """Print a job's output until it has ended; a connection that breaks is made again.

    Raises:
        TimeoutError: If no connection was possible for too long.
    """
    from aiohttp import ClientError

    printed = 0
    answered = time.monotonic()
    while True:
        begun = 0
        try:
            async for text in client.tail_job_logs(job):  # from the beginning, each time
                new = text[max(0, printed - begun) :]
                begun += len(text)
                answered = time.monotonic()
                printed += len(new)
                sys.stdout.write(new)
                sys.stdout.flush()
            info = await asyncio.to_thread(client.get_job_info, job)
            answered = time.monotonic()
            if info.status.is_terminal():
                return _code(info)
        except BrokenPipeError:
            raise  # of the output: nothing reads it any more
        except (RuntimeError, OSError, ClientError) as error:
            if time.monotonic() > answered + AWAY_SECONDS:
                raise TimeoutError(_flat(error) or type(error).__name__) from error
        await asyncio.sleep(RETRY_SECONDS)


def _code(info: Any) -> int:
    """Return the exit code of a job that has ended, and say what Ray says of a failure."""
    if info.status == "SUCCEEDED":
        return DONE
    if info.driver_exit_code in (None, DONE):  # it was stopped, or could not be started
        print(f"vf-rl: the job {info.status.lower()}: {info.message}", file=sys.stderr)
    return info.driver_exit_code or FAILED


def _flat(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".")
