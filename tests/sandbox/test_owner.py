"""Whose a container is, and when that somebody is provably dead."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.waiting import wait_until
from vf.sandbox.container import reaper
from vf.sandbox.container.reaper import (
    GRACE,
    PREFIX,
    Owner,
    cause_of_death,
    start_of,
    this_host,
    this_process,
)

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


def dead_pid() -> int:
    done = subprocess.Popen(["true"])
    done.wait()
    return done.pid


def labels(
    pid: int, start: str, *, host: str | None = None, lifetime: float = 3600
) -> dict[str, str]:
    return Owner("run", host or this_host(), pid, start).labels(lifetime)


def verdict(found: dict[str, str], *, later: float = 0.0) -> str | None:
    return cause_of_death(found, host=this_host(), now=time.time() + later)


@needs_proc
def test_the_start_of_a_process_is_the_kernels() -> None:
    start = start_of(os.getpid())
    assert start
    since_boot = int(start) / os.sysconf("SC_CLK_TCK")
    assert abs(psutil.boot_time() + since_boot - psutil.Process().create_time()) < 2


@needs_proc
def test_a_name_full_of_brackets_confuses_nobody(tmp_path: Path) -> None:
    program = tmp_path / "a) 1 (b) Z"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    with subprocess.Popen([program, "60"]) as process:
        try:
            assert (start_of(process.pid) or "").isdigit()
        finally:
            process.kill()


@needs_proc
def test_a_zombie_is_dead() -> None:
    process = subprocess.Popen(["true"])
    wait_until(lambda: start_of(process.pid) is None)
    process.wait()


def test_a_forked_child_is_another_owner() -> None:
    code = (
        "import os, json\n"
        "from vf.sandbox.container.reaper import this_process\n"
        "def say():\n"
        "    o = this_process()\n"
        "    os.write(1, json.dumps([o.run, o.pid, os.getpid()]).encode() + b'\\n')\n"
        "say()\n"
        "pid = os.fork()\n"
        "say()\n"
        "if pid: os.waitpid(pid, 0)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    said = [json.loads(line) for line in out.splitlines()]
    assert len(said) == 3
    assert all(pid == really for _, pid, really in said)
    assert len({run for run, _, _ in said}) == 2


def test_the_living_are_left_alone_even_past_their_time() -> None:
    mine = this_process().labels(60)
    assert verdict(mine) is None
    if this_process().start:
        assert verdict(mine, later=10 * GRACE) is None


def test_a_process_that_is_gone_is_dead() -> None:
    assert "is gone" in (verdict(labels(dead_pid(), "1")) or "")


@needs_proc
def test_another_process_with_the_same_number_is_not_the_owner() -> None:
    assert "another has its number" in (verdict(labels(os.getpid(), "1")) or "")


def test_a_process_on_another_machine_is_lost_by_time_alone() -> None:
    elsewhere = labels(dead_pid(), "1", host="elsewhere", lifetime=60)
    assert verdict(elsewhere) is None
    assert verdict(elsewhere, later=60 + GRACE - 5) is None
    assert verdict(elsewhere, later=60 + GRACE + 5) == "its time is over"


def test_where_starts_are_unknown_a_living_number_is_believed_until_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = labels(os.getpid(), "", lifetime=60)
    assert verdict(found) is None
    assert verdict(found, later=60 + GRACE + 5) == "its time is over"
    monkeypatch.setattr(reaper, "start_of", lambda pid: "")
    assert verdict(labels(os.getpid(), "123", lifetime=60)) is None


@pytest.mark.parametrize("broken", ["pid", "expires"])
@pytest.mark.parametrize("value", [None, "", "x"])
def test_broken_labels_prove_nothing(broken: str, value: str | None) -> None:
    found = labels(dead_pid(), "1")
    del found[PREFIX + broken]
    if value is not None:
        found[PREFIX + broken] = value
    assert verdict(found, later=10 * GRACE) is None
