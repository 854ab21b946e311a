"""The dashboard's thread: draws, reads keys, and makes way for whoever else needs the terminal."""

from __future__ import annotations

import atexit
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from rich.console import Console

from vf.trainer.watching.display.board import Board
from vf.trainer.watching.display.browser import Browser
from vf.trainer.watching.display.foreground import in_foreground, unstoppable
from vf.trainer.watching.display.frame import Frame
from vf.trainer.watching.display.keyboard import HAS_TERMIOS, Keyboard
from vf.trainer.watching.display.overheard import Overheard
from vf.trainer.watching.display.screen import Screen

log = logging.getLogger(__name__)

FRAME_SECONDS = 0.25
_ANEW = 20  # frames after which every row is drawn again, should a library have written over it
_JOIN_SECONDS = 2.0  # a terminal that takes nothing more (Ctrl-S) must not hold up the end
# What stops or ends a process that does not handle it. It does so still, but not before the
# terminal is as it was.
_SIGNALS = ("SIGTSTP", "SIGTERM", "SIGHUP", "SIGQUIT")


def can_draw(console: Console) -> bool:
    """Return whether a console is a terminal that a dashboard can be drawn on."""
    if not HAS_TERMIOS or not console.is_interactive or console.is_dumb_terminal:
        return False
    if not console.encoding.lower().startswith("utf"):
        return False
    try:
        return os.isatty(console.file.fileno())
    except (OSError, ValueError):
        return False


class Dashboard:
    """Shows a board on a terminal as long as the process is in its foreground.

    All drawing and reading is done by one thread of its own, at most four times a second; who
    writes to the board never waits for the terminal.

    Args:
        console: A terminal, by :func:`can_draw`.
        board: What to show.
        heard: Called with each line that anyone prints while the screen is drawn.
        left: Called whenever the screen was left, with the terminal as it was before.
    """

    def __init__(
        self,
        console: Console,
        board: Board,
        heard: Callable[[str], None],
        left: Callable[[], None],
    ) -> None:
        self._left = left
        self._screen = Screen(console)
        self._browser = Browser(board, console)
        self._frame = Frame(board, self._browser, colour=self._screen.colour)
        self._keyboard = Keyboard(sys.stdin.fileno()) if _stdin_is_terminal() else None
        self._overheard = Overheard(heard)
        self._thread = threading.Thread(target=self._run, name="vf-dashboard", daemon=True)
        self._wake, self._waker = os.pipe()
        self._ended = threading.Event()
        self._aside = False  # while a signal is obeyed
        self._terminal = threading.RLock()  # held by whoever enters, draws or leaves
        self._handled: list[int] = []
        self._stopped = False
        self._pid = os.getpid()
        self.shown = False

    def start(self) -> None:
        """Begin to draw."""
        atexit.register(self.stop)
        if threading.current_thread() is threading.main_thread():
            for name in _SIGNALS:
                number = getattr(signal, name)
                if signal.getsignal(number) is signal.SIG_DFL:
                    signal.signal(number, self._step_aside)
                    self._handled.append(number)
        if in_foreground(self._screen.fd):
            with unstoppable():
                self._enter()
        self._thread.start()

    def stop(self) -> None:
        """Leave the terminal as it was. Safe to call twice, also where Ctrl-C broke into it."""
        if self._stopped or os.getpid() != self._pid:
            return
        self._ended.set()
        os.write(self._waker, b".")
        if self._keyboard is not None and self.shown:
            with unstoppable():
                self._keyboard.resume()
        self._thread.join(_JOIN_SECONDS)
        self._leave()
        for number in self._handled:
            if signal.getsignal(number) == self._step_aside:
                signal.signal(number, signal.SIG_DFL)
        self._stopped = True
        atexit.unregister(self.stop)
        if not self._thread.is_alive():
            os.close(self._wake)
            os.close(self._waker)

    def _run(self) -> None:
        try:
            with unstoppable():
                self._loop()
        except OSError as error:
            log.info("the terminal is gone: %s", error)
        except Exception:
            log.exception("the dashboard failed; the run goes on with plain lines")
        finally:
            if not self._ended.is_set():
                self._leave()

    def _loop(self) -> None:
        frame = 0
        while not self._ended.is_set():
            started = time.monotonic()
            frame += 1
            with self._terminal:
                if self._aside or not in_foreground(self._screen.fd):
                    self._leave()
                else:
                    self._enter()
                    self._draw(anew=frame % _ANEW == 0)
            # A key is answered by the next frame, and a frame comes four times a second at most.
            while not self._ended.is_set() and time.monotonic() < started + FRAME_SECONDS:
                self._listen(started + FRAME_SECONDS - time.monotonic())

    def _draw(self, *, anew: bool) -> None:
        if anew:
            self._screen.forget()
        width, height = self._screen.size
        self._screen.draw(self._frame.rows(width, height), width, height)

    def _listen(self, seconds: float) -> None:
        keyboard = self._keyboard if self.shown else None
        sources = [self._wake] if keyboard is None else [self._wake, keyboard.fd]
        ready, _, _ = select.select(sources, [], [], max(0.0, seconds))
        if keyboard is None or keyboard.fd not in ready or not in_foreground(keyboard.fd):
            return
        keys = keyboard.read()
        if keys is None:
            keyboard.close()
            self._keyboard = None
        for key in keys or []:
            if key == "redraw":
                self._screen.forget()
            self._browser.press(key)

    def _enter(self) -> None:
        with self._terminal:
            if self._keyboard is not None and not (self.shown and self._keyboard.raw):
                self._keyboard.open()
            if not self.shown:
                self._screen.enter()
                self._overheard.open()
                self.shown = True

    def _leave(self) -> None:
        # In vain if the other thread cannot write (Ctrl-S); then nothing it holds matters.
        held = self._terminal.acquire(timeout=_JOIN_SECONDS)
        try:
            if self.shown:
                with unstoppable():
                    self._overheard.close()
                    self._screen.leave()
                    if self._keyboard is not None:
                        self._keyboard.close()
                    self.shown = False
                    self._left()
        finally:
            if held:
                self._terminal.release()

    def _step_aside(self, number: int, frame: FrameType | None) -> None:
        """Leave the terminal, and have the signal do what it does to those who ignore it."""
        if os.getpid() == self._pid:  # else a forked child inherited this
            self._aside = True
            self._leave()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        # Only after Ctrl-Z there is an afterwards.
        signal.signal(number, self._step_aside)
        self._aside = False


def _stdin_is_terminal() -> bool:
    try:
        return os.isatty(sys.stdin.fileno())
    except (AttributeError, OSError, ValueError):
        return False
