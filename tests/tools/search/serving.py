"""`vf-rl search serve` in a process of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

COMMAND = [sys.executable, "-m", "vf.trainer.commands.main", "search"]


def command(*args: object) -> list[str]:
    """Return the command line of `vf-rl search` with these arguments."""
    return [*COMMAND, *map(str, args)]


@contextmanager
def served(index: Path | str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Serve an index; yield its URL and the process."""
    server = subprocess.Popen(
        command("serve", index, "--port", 0), stderr=subprocess.PIPE, text=True
    )
    try:
        assert server.stderr is not None
        said = ""
        for line in server.stderr:
            said += line
            if found := re.search(r"running on (http://[\d.:]+)", line):
                break
        else:
            raise AssertionError(f"the server did not start: {said}")
        yield found[1], server
    finally:
        server.kill()
        server.wait(60)
        assert server.stderr is not None
        server.stderr.close()
