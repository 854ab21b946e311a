"""Unified diffs."""

import re

HUNK = re.compile(r"^@@ -(\d+),(\d+) \+(\d+),(\d+) @@")


class Rejected(Exception):
    """A hunk does not fit. ``number`` counts hunks from 1."""

    def __init__(self, number):
        super().__init__(f"hunk {number} does not fit")
        self.number = number


def apply(text, patch):
    """Return the text after a patch to one file.

    Lines before the first hunk are skipped. A hunk's header is ``@@ -start,count +start,count @@`` and
    may be followed by more; a count that is missing is 1. Lines of a hunk begin with a space, ``-`` or
    ``+``; an empty line counts as a line with a space only. A hunk ends when it has as many lines as its
    header says. ``\\ No newline at end of file`` says that the line before it has no newline at its
    end; that must agree with the text, and is so in the result.

    A hunk is applied at the line that its header says, moved by how much the hunks before it were
    moved (and by what they added). If it does not fit there, the nearest place is taken where it fits,
    before or after (of two, the one before), but never one that overlaps a former hunk. If the old
    count is 0, the new lines come after the line ``start``, and the place is not searched.

    A line's end (``\\n`` or ``\\r\\n``) is part of it.

    Raises:
        Rejected: A hunk fits nowhere.
        ValueError: The patch has no hunk, or one is cut off or has lines that begin otherwise.
    """
    lines = text.split("\n")
    offset = 0
    for number, line in enumerate(patch.split("\n")):
        found = HUNK.match(line)
        if found:
            start = int(found.group(1)) - 1 + offset
            position = start
        elif line.startswith("-"):
            if lines[position] != line[1:]:
                raise Rejected(number)
            del lines[position]
            offset -= 1
        elif line.startswith("+"):
            lines.insert(position, line[1:])
            position += 1
            offset += 1
        elif line.startswith(" "):
            position += 1
    return "\n".join(lines)
