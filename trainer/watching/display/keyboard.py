"""Keys, one by one and without echo, and the terminal's mode as it was afterwards."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import Any

try:
    import termios
except ImportError:
    HAS_TERMIOS = False  # on Windows
else:
    HAS_TERMIOS = True

# What terminals send for keys that have no character (ECMA-48, and xterm's control sequences).
_NAMED = {
    b"A": "up",
    b"B": "down",
    b"C": "right",
    b"D": "left",
    b"5~": "page up",
    b"6~": "page down",
    b"H": "newest",
    b"1~": "newest",
    b"g": "newest",
    b"\x0c": "redraw",
}
_KEY = re.compile(rb"\x1b(?:\[|O)([0-9;]*[ -/]*[@-~])|\x1b|([^\x1b])", re.DOTALL)
_BEGUN = re.compile(rb"\x1b(?:\[[0-9;]*|O)?$")


class Keyboard:
    """A terminal's keyboard. Ctrl-C, Ctrl-Z and their like stay the terminal's business.

    Args:
        fd: File descriptor of the terminal.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._before: list[Any] | None = None
        self._begun = b""

    @property
    def raw(self) -> bool:
        """Whether keys come one by one, as :meth:`open` has it; a shell may have changed that."""
        try:
            return not termios.tcgetattr(self.fd)[3] & termios.ICANON
        except termios.error:
            return True  # it is gone, and there is nothing to set

    def open(self) -> None:
        """Have keys come one by one, and not be echoed."""
        try:
            mode = termios.tcgetattr(self.fd)
            if self._before is None:
                self._before = [*mode]
            mode[3] &= ~(termios.ICANON | termios.ECHO)
            mode[6] = [*mode[6]]
            mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
            termios.tcsetattr(self.fd, termios.TCSANOW, mode)
        except termios.error:
            self._before = None

    def close(self) -> None:
        """Put the terminal's mode back, and drop what was typed. Safe to call twice."""
        before, self._before = self._before, None
        if before is None:
            return
        with suppress(termios.error):  # the terminal may be gone
            termios.tcsetattr(self.fd, termios.TCSANOW, before)
            termios.tcflush(self.fd, termios.TCIFLUSH)

    def resume(self) -> None:
        """Undo a Ctrl-S, which holds up whoever writes to this terminal."""
        with suppress(termios.error):
            # Linux only restarts what tcflow has stopped, so stop it in that way too.
            termios.tcflow(self.fd, termios.TCOOFF)
            termios.tcflow(self.fd, termios.TCOON)

    def read(self) -> list[str] | None:
        """Return the keys pressed by now, waiting for the first; None once there are no more."""
        try:
            new = os.read(self.fd, 1024)
        except OSError:
            return None
        return self.decode(new) if new else None

    def decode(self, new: bytes) -> list[str]:
        """Return the keys that bytes stand for, each by its name or as its character."""
        data, self._begun = self._begun + new, b""
        if (tail := _BEGUN.search(data)) is not None:
            data, self._begun = data[: tail.start()], tail.group()
        keys = []
        for sequence, character in _KEY.findall(data):
            keys.append(_NAMED.get(sequence or character, character.decode("latin-1")))
        return [key for key in keys if key]
