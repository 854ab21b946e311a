"""The blocks of code and the commands that README and docs show."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block.

    Attributes:
        page: Its file, from the repository's root.
        line: Where its code begins, from 1.
        kind: Its language; empty for none.
        runs: Whether it claims to run: it is not marked `no-run`.
        text: The code.
    """

    page: str
    line: int
    kind: str
    runs: bool
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@cache
def blocks(path: Path) -> list[Block]:
    """Return the fenced blocks of a page."""
    text = path.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(text):
        kind, _, tag = match[1].partition(" ")
        line = text.count("\n", 0, match.start(2)) + 1
        page = path.relative_to(ROOT).as_posix()
        assert tag in ("", "no-run"), f"{page}:{line - 1}: {tag!r} means nothing"
        found.append(Block(page, line, kind, not tag, match[2]))
    return found


def lines_of_commands(path: Path) -> list[str]:
    """Return what a page shows to be typed: blocks without a language, and indented blocks."""
    shown = [line for block in blocks(path) if not block.kind for line in block.text.splitlines()]
    prose = _FENCE.sub("", path.read_text(encoding="utf-8"))
    return shown + [line[4:] for line in prose.splitlines() if line.startswith("    ")]


def commands(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the shell commands of a page as words, each with where it stands.

    They stand in blocks without a language, in indented blocks, and as code within a line.
    """
    shown = lines_of_commands(path)
    prose = _FENCE.sub("", path.read_text(encoding="utf-8"))
    shown += [code.replace("\n", " ") for code in re.findall(r"`([^`]+)`", prose)]
    for line in shown:
        first = re.split(r"[|;]|&&", line)[0]
        if re.match(r"(\.venv/bin/)?(vf-\w+|make|python|bash|pip)\s", first):
            yield (
                f"{path.relative_to(ROOT).as_posix()}: {line}",
                shlex.split(first.removeprefix(".venv/bin/"), comments=True),
            )
