"""The other end of :mod:`vf.runtime.worker_handles`: a process that calls functions on request."""

from __future__ import annotations

import os
import pickle
import resource
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle

_POLL_SECONDS = 1.0
_FORK_MEMORY = 1 << 30  # bytes of address space
# A fork has none of its parent's threads, and one of numpy's per core takes address space.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
STARTED, DONE, RAISED = "started", "done", "raised"


def serve(fd: int, parent: int) -> None:
    """Call what comes through the pipe, one after the other, until its other end closes.

    Args:
        fd: The pipe. What comes in is ``(import path, pickled (fn, args), seconds of processor
            time)``, pickled; ``(STARTED, None)`` and then ``(DONE, value)`` or ``(RAISED, (type,
            message, traceback))`` go out. A call that takes more than its processor time, and one
            for which memory does not suffice, ends the process.
        parent: Id of the process that started this one; without it, this process ends.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    pipe = Connection(fd)
    while True:
        try:
            request = pipe.recv_bytes()
        except EOFError:
            return
        try:
            sys.path[:], call, processor_time = pickle.loads(request)
            fn, args = pickle.loads(call)  # imports the function's module: not on its clock
            pipe.send((STARTED, None))
            signal.setitimer(signal.ITIMER_PROF, processor_time or 0)
            answer = pickle.dumps((DONE, fn(*args)))
        except MemoryError:
            os._exit(1)  # what else lacks memory now is unknown
        except BaseException as error:
            details = type(error).__name__, str(error), traceback.format_exc()
            answer = pickle.dumps((RAISED, details))
        signal.setitimer(signal.ITIMER_PROF, 0)
        pipe.send_bytes(answer)


def serve_forks(fd: int, parent: int) -> None:
    """Start workers as forks of this process, which loads their functions' modules for them.

    Args:
        fd: A duplex pipe. ``(import path, pickled fn, niceness)`` comes in, then the handle of the
            worker's pipe, and its process id goes out; or the process id of a worker that has ended
            or was killed comes in, and its exit code goes out, None if it is of another process.
        parent: Id of the process that started this one; without it, this process ends.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ |= _ONE_THREAD
    resource.setrlimit(resource.RLIMIT_AS, (_FORK_MEMORY, _FORK_MEMORY))
    pipe = Connection(fd)
    while os.getppid() == parent:
        if not pipe.poll(_POLL_SECONDS):
            continue
        try:
            request = pipe.recv()
        except EOFError:
            return
        if isinstance(request, int):
            pipe.send(_exit_code(request))
            continue
        sys.path[:], function, niceness = request
        workers_pipe = recv_handle(pipe)
        with suppress(BaseException):  # the worker fails at it again, and says so
            pickle.loads(function)
        pid = os.fork()
        if not pid:
            pipe.close()
            os.nice(niceness)
            serve(workers_pipe, os.getppid())
            os._exit(0)
        os.close(workers_pipe)
        pipe.send(pid)


def _exit_code(pid: int) -> int | None:
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:  # a fork of the interpreter that was here before this one
        return None


def _end_with(parent: int) -> None:
    """End this process at once, in the middle of a call too, when its parent is gone."""
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os._exit(1)
