"""The end of a server's log, as its user sees it: the cause, and no litter."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.waiting import wait_until
from vf.inference.vllm.server_process import LINE_LENGTH, TAIL_LINES, ServerProcess

WRITE = "import sys; sys.stderr.write(sys.argv[1])"


def server_that_wrote(lines: Iterable[str], log: Path) -> ServerProcess:
    """Run a process that writes these lines and ends."""
    command = [sys.executable, "-S", "-c", WRITE, "\n".join(lines) + "\n"]
    server = ServerProcess(command, os.environ, log)
    wait_until(lambda: server.returncode is not None)
    server.stop()
    return server


def tail(lines: Iterable[str], tmp_path: Path) -> list[str]:
    return [line.strip() for line in server_that_wrote(lines, tmp_path / "log").tail().splitlines()]


def test_the_last_lines_are_shown(tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(40)]
    assert tail(lines, tmp_path) == lines[-TAIL_LINES:]


def test_the_cause_is_shown_though_much_was_written_after_it(tmp_path: Path) -> None:
    cause = "(EngineCore pid=7) torch.OutOfMemoryError: CUDA out of memory."
    noise = [f"at line {number}" for number in range(40)]
    assert tail([*noise, cause, *noise], tmp_path) == [cause, "...", *noise[-TAIL_LINES:]]
    assert tail([cause, "bye"], tmp_path) == [cause, "bye"]


def test_the_last_cause_counts_and_its_echoes_do_not(tmp_path: Path) -> None:
    noise = [f"at line {number}" for number in range(TAIL_LINES)]
    lines = ["KeyError: 'a'", "ValueError: no blocks left", "EngineDeadError: EngineCore: dead"]
    assert tail([*lines, *noise], tmp_path)[:2] == ["ValueError: no blocks left", "..."]


def test_litter_is_left_out(tmp_path: Path) -> None:
    litter = [
        "nanobind: leaked 2 instances!",
        "/usr/lib/python3.12/multiprocessing/resource_tracker.py:254: UserWarning: semaphores",
        "  warnings.warn('resource_tracker: There appear to be leaked objects')",
    ]
    shown = tail(["RuntimeError: no kernel image", *litter * 10, "", "   "], tmp_path)
    assert shown == ["RuntimeError: no kernel image"]


def test_an_earlier_run_in_the_same_log_is_not_blamed(tmp_path: Path) -> None:
    server_that_wrote(["ValueError: of yesterday"], tmp_path / "log")
    assert tail(["fine so far"], tmp_path) == ["fine so far"]
    assert "of yesterday" in (tmp_path / "log").read_text()


def test_long_lines_are_cut_and_bytes_that_are_not_text_are_survived(tmp_path: Path) -> None:
    command = [sys.executable, "-S", "-c", "import os; os.write(1, b'\\xff' + b'x' * 1000)"]
    server = ServerProcess(command, os.environ, tmp_path / "log")
    wait_until(lambda: server.returncode is not None)
    server.stop()
    assert server.last_line() == "\ufffd" + "x" * (LINE_LENGTH - 1)


def test_a_server_that_said_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-S", "-c", ""]
    server = ServerProcess(command, os.environ, tmp_path / "deep" / "log")
    wait_until(lambda: server.returncode is not None)
    server.stop()
    assert (server.last_line(), server.tail()) == ("", "")
