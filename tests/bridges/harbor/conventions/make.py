"""Fifty task folders in the conventions of others, each of which an oracle solves.

python -m tests.bridges.harbor.conventions.make FOLDER
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path

from tests.bridges.harbor.conventions.older import OLDER
from tests.bridges.harbor.conventions.several import COMPOSED, NETWORK, SEPARATED, STEPS
from tests.bridges.harbor.conventions.single import SINGLE
from tests.bridges.harbor.conventions.writing import write

TASKS = {**SINGLE, **STEPS, **SEPARATED, **COMPOSED, **NETWORK, **OLDER}
HOST = "@HOST@"


def make(folder: Path, *, host: str = "127.0.0.1", only: Collection[str] = TASKS.keys()) -> Path:
    """Write the tasks below a folder, and return it.

    Args:
        folder: Where.
        host: The address that tasks with a network may reach.
        only: Which of :data:`TASKS`.
    """
    for name in only:
        files = {path: text.replace(HOST, host) for path, text in TASKS[name].items()}
        write(folder / name, files)
    return folder


if __name__ == "__main__":
    make(Path(sys.argv[1]))
