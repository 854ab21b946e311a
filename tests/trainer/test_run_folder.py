"""The folder of a run: numbered, made once, and one process's at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.configs import configured
from vf.runtime.errors import ConfigError
from vf.trainer.run import run_folder
from vf.trainer.run.run_folder import RunFolder, choose_folder, make_folder
from vf.trainer.settings.config import Config


def test_a_run_that_a_process_works_on_is_no_other_ones(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from vf.trainer.run.run_folder import RunFolder
folder = RunFolder(Path(sys.argv[1]))
folder.create()
print("ready", flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "ready\n"
        folder = RunFolder(tmp_path / "run")
        with pytest.raises(ConfigError, match=rf"process {first.pid} is working on .*run; end it"):
            folder.open()
        first.kill()
    folder.open()
    folder.open()  # it is this process's now, however often it asks


def test_folders_are_numbered_and_never_reused(tmp_path: Path) -> None:
    config = configured({"output_dir": str(tmp_path)})
    first = choose_folder(config, "quick")
    assert first == tmp_path / "quick-1"
    RunFolder(first).create()
    assert choose_folder(config, "quick") == tmp_path / "quick-2"
    with pytest.raises(FileExistsError):
        RunFolder(first).create()
    assert make_folder(config, "quick").path == tmp_path / "quick-2"
    with pytest.raises(ConfigError, match="never overwritten"):
        choose_folder(config.with_args(run_name="quick-1"), "quick")


def test_runs_that_start_together_each_have_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slower(config: Config, stem: str) -> Path:
        found = choose_folder(config, stem)  # and another run overtakes, and takes it
        if not (tmp_path / "quick-1").exists():
            RunFolder(found).create()
        return found

    monkeypatch.setattr(run_folder, "choose_folder", slower)
    made = make_folder(configured({"output_dir": str(tmp_path)}), "quick")
    assert made.path == tmp_path / "quick-2"


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(ConfigError, match="cannot make the run's folder"):
        make_folder(configured({"output_dir": str(tmp_path / "runs")}), "quick")
