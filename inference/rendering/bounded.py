"""Chat templates are programs that come with a model: what one may take of time and memory.

Jinja's sandbox keeps a template from files and from the process, and not from going round for ever
or from writing gigabytes. So each that does not ship with vf-rl is first rendered in a process of
its own, and each rendering here has a deadline. What remains: a single call such as ``center``,
which nothing can interrupt, in a branch that none of the first conversations takes.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from vf.inference.rendering.trial_render import MEMORY, TOO_MUCH_MEMORY
from vf.inference.rendering.trial_render import SECONDS as TRIAL_SECONDS

SECONDS = 30.0  # for one conversation; a million tokens take a few
MOST_CHARACTERS = 2**24  # of a text, beside GROWTH
GROWTH = 16  # characters for each of the conversation's
MOST_FACTOR = 10_000  # that a template may multiply a text by


_DEADLINE = 300.0  # s: the trial is bounded by its processor time, unless it gets none
_TRIAL = (
    "import json, runpy, sys; sys.path[:] = json.loads(sys.argv.pop()); "
    "runpy.run_module('vf.inference.rendering.trial_render', run_name='__main__')"
)


class TooMuch(Exception):
    """A template takes more than any template needs; says what."""


def check_source(template: str) -> None:
    """Check that a template does not write gigabytes in one expression, which nothing can stop.

    Raises:
        TooMuch: If it multiplies by a large number, or raises to a power.
    """
    from jinja2 import Environment, TemplateSyntaxError, nodes

    try:
        tree = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(template)
    except TemplateSyntaxError:  # an extension of the syntax: what renders it knows
        return
    for node in tree.find_all((nodes.Mul, nodes.Pow)):
        factors = [side.value for side in (node.left, node.right) if isinstance(side, nodes.Const)]
        large = any(isinstance(factor, int | float) and factor > MOST_FACTOR for factor in factors)
        if large or isinstance(node, nodes.Pow):
            raise TooMuch(f"line {node.lineno} multiplies by more than {MOST_FACTOR:,}")


@lru_cache(maxsize=64)
def try_out(template: str) -> None:
    """Render a few typical conversations in a process with bounded memory and processor time.

    Raises:
        TooMuch: If it takes more.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-S", "-c", _TRIAL, str(TRIAL_SECONDS), json.dumps(sys.path)],
            input=template.encode("utf-8", "replace"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_DEADLINE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TooMuch(f"it does not end within {_DEADLINE:g} s") from None
    if done.returncode == TOO_MUCH_MEMORY:
        raise TooMuch(f"a short conversation takes more than {MEMORY / 2**30:g} GiB of memory")
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        raise TooMuch(f"a short conversation takes more than {TRIAL_SECONDS:g} s")


def render(write: Callable[[], str], characters: int) -> str:
    """Return what a template writes for a conversation of so many characters.

    Raises:
        TooMuch: If it takes too long, or writes too much.
    """
    with _interrupted(SECONDS):
        text = write()
    if len(text) > MOST_CHARACTERS + GROWTH * characters:
        raise TooMuch(f"it writes {len(text):,} characters for a conversation of {characters:,}")
    return text


@contextmanager
def _interrupted(seconds: float) -> Iterator[None]:
    """Raise TooMuch in the block, which computes in Python, after so many seconds."""
    thread, fired, lock = threading.get_ident(), False, threading.Lock()
    ended = False

    def interrupt() -> None:
        nonlocal fired
        with lock:
            if not ended:
                fired = True
                _raise_in(thread, TooMuch)

    cancel = _ALARM.at(time.monotonic() + seconds, interrupt)
    try:
        try:
            yield
        finally:
            with lock:
                ended = True
                if fired:
                    _raise_in(thread, None)  # should it not have been raised yet
            cancel()
    except TooMuch:
        raise TooMuch(f"it does not end within {seconds:g} s") from None


def _raise_in(thread: int, error: type[Exception] | None) -> None:
    """Have a thread raise an error at its next step of Python, or no longer have it raise one."""
    set_error: Any = ctypes.pythonapi.PyThreadState_SetAsyncExc
    set_error(ctypes.c_ulong(thread), None if error is None else ctypes.py_object(error))


class _Alarm:
    """One thread for all that is timed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: dict[object, tuple[float, Callable[[], None]]] = {}
        self._wakes: float | None = None  # when the thread looks again; None while there is none

    def at(self, when: float, action: Callable[[], None]) -> Callable[[], None]:
        """Call an action at a time, unless what is returned is called before."""
        key = object()
        with self._changed:
            self._due[key] = when, action
            if self._wakes is None:
                self._wakes = when
                threading.Thread(target=self._run, name="vf-templates", daemon=True).start()
            elif when < self._wakes:  # else it is not woken: that takes longer than most renderings
                self._wakes = when
                self._changed.notify()
        return lambda: self._drop(key)

    def _drop(self, key: object) -> None:
        with self._changed:
            self._due.pop(key, None)

    def _run(self) -> None:
        with self._changed:
            while self._due:
                key, (when, action) = min(self._due.items(), key=lambda item: item[1][0])
                if (left := when - time.monotonic()) > 0:
                    self._wakes = when
                    self._changed.wait(left)
                else:
                    del self._due[key]
                    action()
            self._wakes = None


_ALARM = _Alarm()


def _forget() -> None:
    """Have another timer in a process that was forked, where the thread of this one is missing."""
    global _ALARM
    _ALARM = _Alarm()


os.register_at_fork(after_in_child=_forget)
