"""Run `pip install` with a line of progress: `python scripts/pip_install.py WHAT -- ARGUMENTS`.

pip says either pages or nothing. This shows what it is doing and for how long: on a terminal in one
line that is rewritten, elsewhere a line every five seconds. If pip fails, all that it said follows.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time

TERMINAL_INTERVAL = 0.5  # seconds
LOG_INTERVAL = 5.0
WIDTH = 79
TOLD = ("Collecting", "Downloading", "Building", "Installing")  # what pip's line begins with


def install(what: str, arguments: list[str]) -> int:
    """Run pip, and return its exit code."""
    terminal = sys.stdout.isatty()
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", *arguments]
    pip = subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace"
    )
    said: list[str] = []
    doing = "starting pip"

    def read() -> None:
        nonlocal doing
        assert pip.stdout is not None
        for line in map(str.strip, pip.stdout):
            said.append(line)
            if line.startswith(TOLD):
                doing = line.split(" (")[0]

    reader = threading.Thread(target=read, daemon=True)
    started = time.monotonic()

    def show(now: str) -> None:
        line = f"Installing {what}: {time.monotonic() - started:.0f} s"
        line = f"{line}, {now}"[:WIDTH] if now else line
        print(f"\r\033[K{line}" if terminal else line, end="" if terminal else "\n", flush=True)

    reader.start()
    try:
        while reader.is_alive():
            show(doing)
            reader.join(TERMINAL_INTERVAL if terminal else LOG_INTERVAL)
        code = pip.wait()
    except KeyboardInterrupt:
        pip.wait()  # it got the same signal
        code = 130
    show("" if code == 0 else f"pip ended with code {code}")
    if terminal:
        print()
    if code not in (0, 130):
        print("\n".join(said), file=sys.stderr)
    return code


def main() -> int:
    """Run the command."""
    what, dashes, *arguments = sys.argv[1:]
    if dashes != "--":
        sys.exit(__doc__)
    return install(what, arguments)


if __name__ == "__main__":
    sys.exit(main())
