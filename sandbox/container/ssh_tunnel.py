"""An engine's socket on another machine, forwarded by the system's ssh.

The user's own ssh, with its configuration, keys and agent, forwards a Unix socket in a private
folder to the engine's. It lives as long as this process: ssh waits for the end of its standard
input, which closes however this process ends.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Callable
from typing import TypeVar

from vf.runtime.temporary import make_temporary_folder
from vf.sandbox.container.address import Address
from vf.sandbox.container.stream import close_in_children

READY = b"vf-ready"
CONNECT_TIMEOUT = 20  # seconds
# A connection that stays silent for three of these is given up, and with it every stream.
ALIVE_INTERVAL = 15  # seconds
DYING = 1.0  # seconds in which an ssh that was killed is gone
T = TypeVar("T")


class TunnelFailed(OSError):
    """No tunnel could be made; the message is ssh's own."""


class SshTunnel:
    """Forwards a local Unix socket to that of an engine on another machine.

    Args:
        address: The engine's address: an ``ssh://`` URL.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self._folder = make_temporary_folder("ssh")
        self._socket, self._log = self._folder / "engine.sock", self._folder / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    @property
    def path(self) -> str:
        """The local socket's path."""
        return str(self._socket)

    def through(self, call: Callable[[], T]) -> T:
        """Return the result of a call through the tunnel; repeat it once if ssh ends meanwhile.

        Raises:
            TunnelFailed: If there is no tunnel.
            Exception: If the call raised an exception, which is passed on.
        """
        self.ensure()
        try:
            return call()
        except OSError:  # what requests raises is one, too
            self.ensure(DYING)
            return call()

    def ensure(self, patience: float = 0.0) -> None:
        """Start ssh unless it runs. Blocks until the socket is there.

        Args:
            patience: Seconds in which what runs may still end. The connections of a process that
                was killed are gone before it is.

        Raises:
            TunnelFailed: If the socket cannot be forwarded.
        """
        with self._lock:
            if self._process is not None:
                try:
                    self._process.wait(patience)
                except subprocess.TimeoutExpired:
                    return
            self._end()
            self._start()

    def _start(self) -> None:
        parts = self.address.parts
        options = {
            "BatchMode": "yes",  # no questions
            "ClearAllForwardings": "no",
            "ConnectTimeout": str(CONNECT_TIMEOUT),
            "ControlMaster": "no",
            "ControlPath": "none",
            "ExitOnForwardFailure": "yes",
            "ServerAliveInterval": str(ALIVE_INTERVAL),
            "StreamLocalBindMask": "0177",
            "StreamLocalBindUnlink": "yes",
        }
        command = ["ssh", "-T", "-L", f"{self.path}:{self.address.path}"]
        command += [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        command += ["-l", parts.username] if parts.username else []
        command += ["-p", str(parts.port)] if parts.port else []
        # Forwarding is set up before the command starts.
        command += ["--", str(parts.hostname), f"echo {READY.decode()} && exec cat >/dev/null"]
        # A file, for ssh tells of every connection that the engine refuses, and a pipe could fill.
        log = self._log.open("wb")
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                start_new_session=True,  # Ctrl-C is for this process alone, which then closes it
            )
        except OSError as error:
            raise TunnelFailed(
                f"ssh cannot be started ({error}): install OpenSSH's client"
            ) from None
        finally:
            log.close()
        self._process = process
        assert process.stdin is not None
        close_in_children(process.stdin)
        if not _says_ready(process):
            self._end()
            stderr = self._log.read_text("utf-8", "replace").strip()[-1000:]
            raise TunnelFailed(f"ssh to {parts.netloc} failed: {stderr or 'it stderr nothing'}")

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        process.communicate()
        self._socket.unlink(missing_ok=True)

    def close(self) -> None:
        """End ssh, and every connection through it."""
        with self._lock:
            self._end()
            shutil.rmtree(self._folder, ignore_errors=True)


def _says_ready(process: subprocess.Popen[bytes]) -> bool:
    """Read until ssh's command has started, past any greeting of the other side's shell."""
    assert process.stdout is not None
    hurry = threading.Timer(2 * CONNECT_TIMEOUT, process.kill)
    hurry.start()
    try:
        seen = b""
        while READY not in seen:
            piece = process.stdout.read(4096)
            if not piece:
                return False
            seen = seen[-len(READY) :] + piece
        return True
    finally:
        hurry.cancel()
