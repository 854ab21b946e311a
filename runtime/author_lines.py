"""An exception from an author's code, told by the lines that the author wrote."""

from __future__ import annotations

import traceback

_MOST_FRAMES = 4


def author_lines(error: BaseException, module: str) -> str:
    """Return a traceback without anything but the author's own lines, and the error itself.

    Args:
        error: What was raised.
        module: A module of the author's. Frames of its top-level package are the author's; of
            more than four, the last four are kept.

    Returns:
        Lines as Python prints them: file, line and code of each frame, innermost last, and then
        the exception. For a syntax error that includes the place.
    """
    package = module.partition(".")[0]
    frames = [
        (frame, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] == package
    ]
    stack = traceback.StackSummary.extract(iter(frames[-_MOST_FRAMES:]))
    shown = [*stack.format(), *traceback.format_exception_only(error)]
    return "".join(shown).rstrip("\n")
