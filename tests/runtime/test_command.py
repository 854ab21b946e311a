"""How commands end: the line on standard error, and the exit code."""

from __future__ import annotations

import argparse
import io
import logging
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from vf.runtime.command import check_run_exists, config_file, run_command
from vf.runtime.errors import ConfigError, EngineError, VfError


def raising(error: BaseException) -> int:
    """Stand for a command that fails."""
    return run_command("vf-any", lambda: _raise(error), kept="half is kept", extra="train")


def _raise(error: BaseException) -> int:
    raise error


def test_the_exit_code_is_the_commands_own(capfd: pytest.CaptureFixture[str]) -> None:
    assert [run_command("vf-any", partial(int, code)) for code in (0, 1, 7)] == [0, 1, 7]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ConfigError("no such field"), 2, "no such field"),
        (EngineError("it is down"), 1, "it is down"),
        (FileNotFoundError(2, "No such file or directory", "a.txt"), 1, "'a.txt'"),
        (ModuleNotFoundError("No module", name="torch"), 2, "'torch': pip install 'vf-rl[train]'"),
        (ModuleNotFoundError("No module", name="yaml"), 2, "'yaml': pip install 'vf-rl[sandbox]'"),
        (KeyboardInterrupt(), 130, "interrupted; half is kept"),
    ],
)
def test_errors_become_a_line_and_a_code(
    error: BaseException, code: int, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert raising(error) == code
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("vf-any: ")
    assert said in err
    assert err.count("\n") == 1


def files_of_runs(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "config.toml").touch()


@pytest.mark.parametrize(
    ("config", "resume", "words"),
    [
        (
            "all/one",
            None,
            "all/one is a folder: name a TOML file; to continue the run in it",
        ),
        ("all", None, "all is a folder: name a TOML file$"),
        (
            None,
            "all",
            "no file config.toml in it, .* the folder of a run; it holds the runs one",
        ),
        (None, "no", r"there is no folder .*no, and no run in "),
        (None, "all/tow", "there is no folder .*tow. Runs beside it: .*/all/one$"),
        (None, "all/one/config.toml", "is a file; name a run's folder"),
    ],
)
def test_a_folder_in_the_wrong_place_is_named(
    tmp_path: Path, config: str | None, resume: str | None, words: str
) -> None:
    files_of_runs(tmp_path, "all/one")
    named = {"config": config, "resume": resume}
    paths = {key: None if name is None else tmp_path / name for key, name in named.items()}
    with pytest.raises(ConfigError, match=words):
        config_file(argparse.Namespace(**paths))


def test_runs_beside_one_that_is_not_there_are_listed_with_the_nearest_first(
    tmp_path: Path,
) -> None:
    files_of_runs(tmp_path, "run-1", "quickstart-1", "quickstart-2")
    with pytest.raises(ConfigError) as error:
        check_run_exists(tmp_path / "quikstart-2")
    listed = ", ".join(str(tmp_path / name) for name in ("quickstart-2", "quickstart-1", "run-1"))
    assert str(error.value).endswith(f"quikstart-2. Runs beside it: {listed}")


def test_our_own_mistakes_keep_their_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        raising(ZeroDivisionError())
    with pytest.raises(ModuleNotFoundError):
        raising(ModuleNotFoundError("No module", name="vf.no_such_room"))
    with pytest.raises(ModuleNotFoundError):
        raising(ModuleNotFoundError("No module", name="of_no_extra"))


def test_a_signal_is_named_and_its_number_is_in_the_code() -> None:
    """In a process of its own, which gets a real SIGTERM."""
    code = """
import os, signal, sys
from vf.runtime.command import check_run_exists, config_file, run_command
from vf.runtime.interrupts import orderly_end

def run():
    with orderly_end(launched=False):
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()

sys.exit(run_command("vf-any", run, kept="half is kept"))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=os.environ
    )
    assert done.returncode == 128 + signal.SIGTERM
    assert done.stderr == "vf-any: stopped by SIGTERM; half is kept\n"


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What a run's log file would hold."""
    stream = io.StringIO()
    handler, logger = logging.StreamHandler(stream), logging.getLogger("vf")
    before, logger.handlers = logger.handlers, [handler]
    yield stream
    logger.handlers = before


def test_a_runs_log_gets_the_traceback(log: io.StringIO) -> None:
    raising(VfError("it broke"))
    assert "Traceback" in log.getvalue()
    assert "VfError: it broke" in log.getvalue()


def test_no_future_warning_of_a_library_reaches_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def body() -> int:
        warnings.warn("the next version calls it otherwise", FutureWarning, stacklevel=1)
        warnings.warn("your data is odd", UserWarning, stacklevel=1)
        return 0

    def show(message: Warning | str, *_: object) -> None:
        print(message, file=sys.stderr)

    monkeypatch.setattr(sys, "warnoptions", [])
    monkeypatch.setattr(warnings, "showwarning", show)
    with warnings.catch_warnings():
        warnings.resetwarnings()
        assert run_command("vf-rl", body) == 0
    assert capsys.readouterr().err == "your data is odd\n"


@pytest.mark.parametrize("lines", [1, 100_000])
def test_a_reader_that_has_seen_enough_ends_the_command_in_silence(lines: int) -> None:
    program = f"""
import sys
from vf.runtime.command import check_run_exists, config_file, run_command

sys.stdin.read()
sys.exit(run_command("vf-any", lambda: print("a line\\n" * {lines}) or 0))
"""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as command:
        assert command.stdout is not None
        command.stdout.close()
        _, said = command.communicate()
    assert (command.returncode, said) == (141, "")
