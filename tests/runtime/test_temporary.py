"""Temporary folders of processes that end, are killed, or still run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vf.runtime.temporary import temporary_folder

MAKE = """
import os, sys
from vf.runtime.temporary import make_temporary_folder
folder = make_temporary_folder("work")
(folder / "closed").mkdir()
(folder / "closed" / "file").touch()
(folder / "closed").chmod(0)
print(folder, flush=True)
sys.stdin.read()
"""


def start(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    """Start a process that has made a folder, and ends when its input does."""
    process = subprocess.Popen(
        [sys.executable, "-c", MAKE],
        env=os.environ | {"TMPDIR": str(parent)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_the_folders_of_killed_processes_alone_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (killed, left), (living, used) = start(tmp_path), start(tmp_path)
    (beginning := tmp_path / "vf-beginning").mkdir()  # not locked yet
    killed.kill()
    killed.communicate()
    assert left.is_dir()
    with temporary_folder("mine") as mine:
        assert mine.parent.parent == tmp_path
        assert {*tmp_path.iterdir()} == {mine.parent, used.parent, beginning}
    assert not mine.exists()
    living.communicate()
    assert not used.parent.exists(), "it has ended, and its folder with it"


def test_a_fork_does_not_remove_what_is_its_parents(tmp_path: Path) -> None:
    code = f"{MAKE.replace('sys.stdin.read()', '')}\nif os.fork() == 0: sys.exit()\nos.wait()\n"
    code += "print(folder.is_dir(), make_temporary_folder('b').parent == folder.parent)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[1:] == ["True True"]
    assert not [*tmp_path.iterdir()]
