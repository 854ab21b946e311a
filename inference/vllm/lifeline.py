"""Runs a command that must not outlive its parent: `python lifeline.py FD COMMAND ...`.

FD is the reading end of a pipe whose writing end the parent holds. When the parent ends, however
it ends, the pipe closes, and the command goes with everything that it started. The parent may also
write a byte: a process that it forked can hold the pipe open. Standard library only, so that any
interpreter can run it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

GRACE_SECONDS = 10.0


def end_group(group: int, grace: float) -> None:
    """End a process group: first politely, then for certain."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGTERM)
        deadline = time.monotonic() + grace
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.05)
        os.killpg(group, signal.SIGKILL)


def main() -> int:
    """Run the command and return its exit code."""
    pipe, command = int(sys.argv[1]), sys.argv[2:]
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ending.set())
    try:
        # A group of its own: it can be ended as a whole, and Ctrl-C does not reach it.
        child = subprocess.Popen(command, start_new_session=True, close_fds=True)
    except OSError as error:
        print(f"error: cannot run {command[0]}: {error.strerror}")
        return 127

    def watch() -> None:
        os.read(pipe, 1)
        ending.set()

    def end() -> None:
        ending.wait()
        end_group(child.pid, GRACE_SECONDS)

    for work in (watch, end):
        threading.Thread(target=work, daemon=True).start()
    code = child.wait()
    end_group(child.pid, 1.0)  # what the command left behind
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
