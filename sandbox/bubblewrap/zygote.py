"""The process from which the sandboxes of an owner are forked, each as a supervisor.

Bubblewrap starts it as PID 1 of namespaces of its own, in which no code of a sandbox ever runs. It
has all code of a supervisor loaded, so that a sandbox starts in milliseconds: see
:mod:`vf.sandbox.bubblewrap.enter`. Its stdin is a socket. For each sandbox, a byte comes with three
descriptors: the supervisor's connection, a file for its stderr, and a socket for its status. The
supervisor's connection begins with a 32-bit length and JSON: ``plan`` for ``enter``, ``flags`` of
the supervisor, and ``env``.

On the status socket it sends the wait status of the sandbox's PID 1 at its end, or ``E text`` if
there could be none; whatever comes on it, or its end, kills the sandbox. When stdin ends, it ends,
and the kernel ends every sandbox with it. It reads nothing that comes from inside one.

It runs in Python 3.9.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import json
import os
import resource
import select
import signal
import socket
import struct
import traceback
from typing import Any, NoReturn

from vf.sandbox.bubblewrap.enter import enter, leave_pid_namespace, return_to
from vf.sandbox.inside.main import parse, serve

READY, START = b"R", b"S"
DESCRIPTORS = 3
CLOSE_RANGE = 436  # the system call; it has one number everywhere
_libc = ctypes.CDLL(None, use_errno=True)


class Zygote:
    """Forks sandboxes and reports their ends."""

    def __init__(self) -> None:
        """Take over stdin."""
        self._requests = socket.socket(fileno=os.dup(0))
        self._space = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._defaults = vars(parse([]))  # parsing takes longer than a fork
        self._pids: dict[int, int] = {}  # by the descriptor of the status socket
        self._statuses: dict[int, socket.socket] = {}  # by pid
        self._wakeup, wakeup = os.pipe()
        os.set_blocking(self._wakeup, False)
        os.set_blocking(wakeup, False)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._poll = select.poll()
        self._poll.register(self._requests, select.POLLIN)
        self._poll.register(self._wakeup, select.POLLIN)

    def run(self) -> None:
        """Serve until stdin ends."""
        self._requests.sendall(READY)
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor == self._requests.fileno():
                    if not self._receive():
                        return
                elif descriptor == self._wakeup:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wakeup, 4096)
                    self._reap()
                elif descriptor in self._pids:
                    self._kill(descriptor)

    def _receive(self) -> bool:
        """Take a request; return whether there was one."""
        data, descriptors, _, _ = socket.recv_fds(self._requests, 1, DESCRIPTORS)
        if len(descriptors) == DESCRIPTORS:
            connection, messages, status = descriptors
            self._start(connection, messages, socket.socket(fileno=status))
        else:  # there is no room for more open files: who asked sees its sockets end
            status = -1
        for descriptor in descriptors:
            if descriptor != status:
                os.close(descriptor)
        return bool(data)

    def _start(self, connection: int, messages: int, status: socket.socket) -> None:
        status.setblocking(False)
        pid = -1
        try:
            leave_pid_namespace()
            pid = os.fork()
        except OSError as error:
            self._tell(status, f"E {error.strerror}".encode())
            status.close()
            return
        finally:
            if pid != 0:
                return_to(self._space)
        if pid == 0:
            supervise(connection, messages, self._defaults)
        self._pids[status.fileno()], self._statuses[pid] = pid, status
        self._poll.register(status, select.POLLIN)

    def _kill(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        pid = self._pids[descriptor]
        os.kill(pid, signal.SIGKILL)  # it was not reaped: the pid is still its own
        with contextlib.suppress(OSError):
            self._statuses[pid].recv(16)  # closing it unread would discard the answer

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, wait_status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid in self._statuses:
                    status = self._statuses.pop(pid)
                    del self._pids[status.fileno()]
                    with contextlib.suppress(KeyError):
                        self._poll.unregister(status)
                    self._tell(status, b"%d" % wait_status)
                    status.close()

    @staticmethod
    def _tell(status: socket.socket, message: bytes) -> None:
        with contextlib.suppress(OSError):  # nobody waits for it
            status.send(message)


def supervise(connection: int, messages: int, defaults: dict[str, Any]) -> NoReturn:
    """Become a sandbox's supervisor, in the child of a fork.

    Args:
        connection: The descriptor for its stdin and stdout.
        messages: The descriptor for its stderr.
        defaults: The flags that no request has.
    """
    code = 70
    try:
        os.dup2(connection, 0)
        os.dup2(connection, 1)
        os.dup2(messages, 2)
        _libc.syscall(CLOSE_RANGE, 3, 2**32 - 1, 0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        with socket.socket(fileno=os.dup(0)) as client:
            (size,) = struct.unpack(">I", client.recv(4, socket.MSG_WAITALL))
            request = json.loads(client.recv(size, socket.MSG_WAITALL))
        sockets = enter(request["plan"])
        os.environ.clear()
        os.environ.update(request["env"])
        code = serve(argparse.Namespace(**{**defaults, **request["flags"], "sockets": sockets}))
    except SystemExit as end:
        os.write(2, f"{end}\n".encode())
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def main(arguments: list[str]) -> int:
    """Fork sandboxes until stdin ends."""
    zygote = Zygote()
    # What it holds grows with the sandboxes, each of which has a limit of its own.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # A fork copies what the collector touches.
    gc.collect()
    gc.freeze()
    zygote.run()
    return 0
