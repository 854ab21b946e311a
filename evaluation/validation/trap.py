"""Keeps hackers that delete and overwrite files harmless where nothing isolates them.

Their code first looks for a file that exists on the machine of the validation only. Where it finds
it, no sandbox is between the two: then the code does no damage, and leaves a sign by which
validation tells the author. And the validation itself runs in an empty folder meanwhile.
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import string
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent


@dataclass(frozen=True, slots=True)
class Trap:
    """What tells a hacker's code that it runs on this machine.

    Attributes:
        marker: A file that exists here, and in no sandbox.
        sign: The file that code makes if it has found the marker.
    """

    marker: Path
    sign: Path

    @property
    def sprung(self) -> bool:
        """Whether code of a hacker ran on this machine."""
        return self.sign.exists()

    def python(self, code: str) -> str:
        """Return Python code that does nothing of the kind on this machine."""
        return (
            "import os\n"
            f"if os.path.exists({str(self.marker)!r}):\n"
            f"    open({str(self.sign)!r}, 'a').close()\n"
            f"else:\n{indent(code, '    ')}"
        )

    def python_exit(self, code: str) -> str:
        """Return Python code that then ends its process with exit code 0, unless it is this one."""
        return (
            f"import os, sys\n{code}sys.stdout.flush()\n"
            f"if os.path.exists({str(self.marker)!r}):\n"
            f"    open({str(self.sign)!r}, 'a').close()\n"
            f"    if {__name__!r} in sys.modules:\n"
            "        raise RuntimeError('this is the process of the validation')\n"
            "os._exit(0)\n"
        )

    def shell(self, command: str) -> str:
        """Return a command for sh that does nothing of the kind on this machine."""
        marker, sign = shlex.quote(str(self.marker)), shlex.quote(str(self.sign))
        return f"if [ -e {marker} ]; then : > {sign}; else {command}; fi"


@contextmanager
def set_trap() -> Iterator[Trap]:
    """Set a trap, and stand in an empty folder until it is taken down.

    Changes the working directory of the whole process.
    """
    before, root = Path.cwd(), _private_folder()
    marker, empty = root / "host", root / "empty"
    try:
        marker.touch()
        empty.mkdir()
        os.chdir(empty)
        yield Trap(marker, root / "sprung")
    finally:
        os.chdir(before)
        shutil.rmtree(root, ignore_errors=True)


def _private_folder() -> Path:
    """Make a folder with a name of letters only: digits in an answer would change what it is."""
    letters = "".join(secrets.choice(string.ascii_lowercase) for _ in range(16))
    folder = Path(tempfile.gettempdir(), f"vf-validate-{letters}")
    folder.mkdir(mode=0o700)
    return folder
