"""Foreign text on a terminal and in logs: a model's answer, an exception's message, a task's id.

All text passes :func:`visible` where it leaves the process: in the console that commands print with
(:mod:`vf.runtime.plain_console`), in a message on standard error, in a line of a log.
"""

from __future__ import annotations

import logging
import unicodedata

from vf.runtime.api_keys import hide_in_text

_UNSEEN = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")


def visible(text: str) -> str:
    """Return text that cannot command a terminal: what is not seen becomes its code point."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        f"<U+{ord(char):04X}>"
        if char not in "\n\t" and unicodedata.category(char) in _UNSEEN
        else char
        for char in text
    )


class VisibleFormatter(logging.Formatter):
    """Formats log records, whose texts may be anybody's; see :func:`visible`.

    URLs in them show no credentials.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as lines."""
        return hide_in_text(visible(super().format(record)))
