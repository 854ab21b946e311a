"""A long request to the engine that returns lines and can be cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

from vf.runtime.errors import HostLost, SandboxError
from vf.sandbox.container.docker_engine import Engine

Line = dict[str, Any]

ENDING = 10.0  # seconds that a cancelled request gets to end
_RUNNING = re.compile(r"---> Running in ([0-9a-f]{12,})")


class Refused(SandboxError):
    """The engine answered with an error, at once or after some lines."""


async def long_call(
    engine: Engine,
    method: str,
    *args: Any,
    on_line: Callable[[Line], None],
    timeout: float,
    **kwargs: Any,
) -> None:
    """Call a method of the SDK's client that answers with a stream of JSON lines.

    A daemon thread reads the answer. When cancelled or out of time, the current step of a build is
    killed, and with it the build.

    Args:
        engine: The engine to call.
        method: The method's name: ``build`` or ``pull``.
        args: The method's positional arguments.
        on_line: A function that gets each line, called in the reading thread.
        timeout: Seconds until it is given up.
        kwargs: The method's keyword arguments.

    Raises:
        Refused: If the engine responded with an error.
        SandboxError: If it did not respond.
        TimeoutError: If it took too long.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[BaseException | None] = loop.create_future()
    stopped = threading.Event()
    running: list[str] = []  # the containers of the steps so far

    def settle(error: BaseException | None) -> None:
        if not ended.done():
            ended.set_result(error)

    def run() -> None:
        error: BaseException | None = None
        try:
            for line in _lines(engine, method, *args, **kwargs):
                on_line(line)
                running.extend(_RUNNING.findall(str(line.get("stream", ""))))
                if "error" in line:
                    raise Refused(str(line["error"]).strip())
                if stopped.is_set():
                    break
        except BaseException as caught:
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, error)

    threading.Thread(target=run, name=f"vf-{method}", daemon=True).start()
    try:
        async with asyncio.timeout(timeout):
            error = await asyncio.shield(ended)
    except (TimeoutError, asyncio.CancelledError):
        stopped.set()
        if running:
            with contextlib.suppress(SandboxError):
                await engine.call("remove_container", running[-1], force=True, v=True)
        await asyncio.wait([ended], timeout=ENDING)
        raise
    if error is not None:
        raise error


def _lines(engine: Engine, method: str, *args: Any, **kwargs: Any) -> Iterator[Line]:
    from docker.errors import APIError, DockerException
    from requests.exceptions import RequestException

    try:
        yield from getattr(engine.client, method)(*args, decode=True, **kwargs)
    except APIError as error:
        raise Refused(error.explanation or str(error)) from error
    except (DockerException, RequestException) as error:
        raise HostLost(f"the engine did not answer {method}: {error}") from error
