"""The other end of :mod:`vf.runtime.process_pool`: a process that calls functions on request."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection

_POLL_SECONDS = 1.0
STARTED, DONE, RAISED = "started", "done", "raised"


def serve(fd: int, parent: int) -> None:
    """Call what comes through the pipe, one after the other, until its other end closes.

    Args:
        fd: The pipe. What comes in is ``(import path, pickled (fn, args))``, pickled;
            ``(STARTED, None)`` and then ``(DONE, value)`` or ``(RAISED, (type, message,
            traceback))`` go out.
        parent: Who started this process; without it, this process ends.
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
            sys.path[:], call = pickle.loads(request)
            fn, args = pickle.loads(call)  # imports the function's module: not on its clock
            pipe.send((STARTED, None))
            answer = pickle.dumps((DONE, fn(*args)))
        except BaseException as error:
            details = type(error).__name__, str(error), traceback.format_exc()
            answer = pickle.dumps((RAISED, details))
        pipe.send_bytes(answer)


def _end_with(parent: int) -> None:
    """End this process at once, in the middle of a call too, when its parent is gone."""
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os._exit(1)
