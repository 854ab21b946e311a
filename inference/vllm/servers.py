"""The server behind an engine: one that the run starts, or one that somebody else runs."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from vf.inference.settings import VllmSettings
from vf.inference.vllm.admin import Admin, Unreached
from vf.inference.vllm.sites import Running
from vf.runtime.errors import ConfigError, EngineError, PlacementError

log = logging.getLogger(__name__)

POLL_SECONDS = 0.5
HOUR = 3600.0
BAD_USAGE = 2  # argparse's exit code: the server did not like its flags

Say = Callable[[str], None]


class Server(Protocol):
    """A server that can go, and can come back without the weights that it was given."""

    def start(self, say: Say) -> None:
        """Return once it is healthy.

        Raises:
            ConfigError: If it refuses its flags.
            EngineError: If it does not become healthy.
        """
        ...

    def stop(self) -> None:
        """End it, if it is the run's own. Safe to call twice."""
        ...

    def is_gone(self) -> bool:
        """Look whether it is there; takes up to a few seconds."""
        ...

    def is_failing(self, error: Exception) -> bool:
        """Return whether a request failed because the server was gone, or is about to be.

        Args:
            error: The error that the request raised.
        """
        ...

    def end(self) -> None:
        """End it, if it is the run's own, so that it can be brought back; in any thread."""
        ...

    def start_again(self) -> None:
        """End it, and return once it is healthy again.

        Raises:
            EngineError: If it does not become healthy.
        """
        ...

    def bring_back(self) -> None:
        """Return once a server that had gone is there again.

        Raises:
            EngineError: If it will not be.
        """
        ...


class OwnServer:
    """A server that the run starts, and starts again if it dies.

    Args:
        settings: ``[inference]``.
        admin: Its control.
        log_path: The file for its output.
        run: Starts its process.
        dying: Seconds within which it is known that a server that is no longer well has ended.
    """

    def __init__(
        self,
        settings: VllmSettings,
        admin: Admin,
        log_path: Path,
        run: Callable[[], Running],
        dying: float,
    ) -> None:
        self._settings = settings
        self._admin = admin
        self._log_path = log_path
        self._run = run
        self._dying = dying
        self._process: Running | None = None
        self._restarts: list[float] = []  # when, within the last hour
        self._stopped = False
        self._lock = threading.Lock()  # none is started once it is stopped
        self._ending = threading.Lock()

    def start(self, say: Say) -> None:
        """Start it, and wait until it is healthy; see :class:`Server`."""
        started = time.monotonic()
        most = self._settings.startup_timeout
        process = self._launch(say, started + most)
        while True:
            seconds = time.monotonic() - started
            code = process.returncode
            if code is not None:  # whoever answers then is another
                kind = ConfigError if code == BAD_USAGE else EngineError
                raise kind(
                    f"the vLLM server did not start (exit code {code}); the end of "
                    f"{self._log_path}:\n{process.tail()}"
                )
            if self._admin.healthy():
                return
            if seconds > most:
                raise EngineError(
                    f"the vLLM server is not healthy after inference.startup_timeout = {most:g} "
                    f"s; the end of {self._log_path}:\n{process.tail()}"
                )
            say(f"vLLM is starting, {seconds:.0f} s: {process.last_line()}")
            time.sleep(POLL_SECONDS)

    def _launch(self, say: Say, deadline: float) -> Running:
        """Return its process, once there is a machine for it.

        Raises:
            ConfigError: If it cannot be started as the settings say.
            EngineError: If no machine was free in time, or it was stopped meanwhile.
        """
        process = None
        while process is None and not self._stopped:
            try:
                process = self._run()
            except PlacementError as error:
                if time.monotonic() > deadline:
                    raise EngineError(f"the vLLM server cannot be placed: {error}") from error
                say(f"the vLLM server waits for a machine: {error}")
                time.sleep(POLL_SECONDS)
        with self._lock:
            if process is not None and not self._stopped:
                self._process = process
                return process
        if process is not None:
            process.stop()
        raise EngineError("the vLLM server was stopped")

    def stop(self) -> None:
        """End it for good."""
        with self._lock:
            self._stopped = True
        self._end()

    def start_again(self) -> None:
        """End it and start it; see :class:`Server`."""
        self._end()
        self.start(lambda text: log.info("%s", text))

    def _end(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            with self._ending:
                process.stop()

    def end(self) -> None:
        """End its process; see :class:`Server`."""
        if (process := self._process) is not None:
            with self._ending:
                process.stop()

    def is_gone(self) -> bool:
        """Return whether its process has ended."""
        process = self._process
        return process is not None and process.returncode is not None

    def is_failing(self, error: Exception) -> bool:
        """Return whether it is dead or unwell, and then wait for its end."""
        deadline = time.monotonic() + self._dying
        while self._process is not None and not self.is_gone():
            if self._admin.healthy() or time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return self._process is not None

    def bring_back(self) -> None:
        """Start it until it is healthy, unless that was done too often within an hour."""
        self.end()  # it may be there, but of no use
        process = self._process
        if process is None:
            return
        died = why = f"the vLLM server died (exit code {process.returncode}):\n{process.tail()}"
        while True:
            now = time.monotonic()
            self._restarts = [then for then in self._restarts if now - then < HOUR]
            most = self._settings.restarts_per_hour
            if len(self._restarts) >= most:
                raise EngineError(
                    f"{why}\nIt was started again {len(self._restarts)} times within the last "
                    f"hour, and inference.restarts_per_hour = {most}."
                )
            self._restarts.append(now)
            log.warning("%s\nIt is started again.", why)
            try:
                self.start_again()
            except (ConfigError, EngineError) as error:
                why = f"{died}\nStarting it again failed: {error}"
                if self._stopped or isinstance(error, ConfigError):
                    raise EngineError(why) from error
            else:
                return


class OutsideServer:
    """A server that somebody else runs: it is waited for.

    Args:
        settings: ``[inference]``, with ``base_url``.
        admin: Its control.
    """

    def __init__(self, settings: VllmSettings, admin: Admin) -> None:
        self._settings = settings
        self._admin = admin
        self._stopped = threading.Event()

    def start(self, say: Say) -> None:
        """Do nothing: it runs already."""

    def stop(self) -> None:
        """Wait for it no longer; it keeps running, since others may use it."""
        self._stopped.set()

    def end(self) -> None:
        """Do nothing: that is for whoever runs it."""

    def start_again(self) -> None:
        """Do nothing, likewise."""

    def is_gone(self) -> bool:
        """Return whether nothing answers."""
        return self._admin.away()

    def is_failing(self, error: Exception) -> bool:
        """Return whether nothing answered, though it may be back by now, or nothing answers."""
        return isinstance(error, Unreached) or self._admin.away()

    def bring_back(self) -> None:
        """Wait until it answers again."""
        url, most = self._settings.base_url, self._settings.away_timeout
        log.warning("the server at %s does not answer; it is waited for", url)
        deadline = time.monotonic() + most
        while not self._admin.answers():
            if time.monotonic() > deadline:
                raise EngineError(
                    f"the server at {url} did not answer for inference.away_timeout = {most:g} s; "
                    "start it again, and resume the run"
                )
            if self._stopped.wait(POLL_SECONDS):
                raise EngineError(f"the server at {url} is not waited for any more")
