"""No process of a program outlives its rollout, or the process that the rollout runs in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import vf
from tests.environments.agents.programs import ASK, run
from tests.waiting import alive, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="adoption is Linux's")

# Two forks and a session of its own: what no process group holds. It says so with its number.
DAEMON = """
ask()
reading, writing = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(writing, str(os.getpid()).encode())
        signal.pause()
    os._exit(0)
os.wait()
pid = os.read(reading, 20).decode()
print(pid, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        ("", vf.StopReason.TERMINATED),
        ("sys.exit(1)", vf.StopReason.TERMINATED),
        ("signal.pause()", vf.StopReason.TRUNCATED),
        ("while True: ask()", vf.StopReason.MAX_TURNS),
    ],
)
def test_a_daemon_dies_with_the_rollout(ending: str, reason: vf.StopReason) -> None:
    seconds = 3.0 if "pause" in ending else 60.0
    trace = run(DAEMON + ending, max_turns=3, timeout=seconds)
    assert (trace.error, trace.stop_reason) == (None, reason)
    assert not alive(int(trace.info["output"]))


PARENT = """
import asyncio, sys, vf
from vf.environments.agents.program import program
task = vf.Task("t", "Go.")
environment = program([sys.executable, "-S", "-c", sys.argv[1], sys.argv[2]], tasks=[task])
asyncio.run(vf.rollout(environment, task, vf.ScriptedModel(["4"] * 9)))
"""


@pytest.mark.slow
def test_nothing_outlives_a_killed_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    file = tmp_path / "pids"
    text = f"{ASK}{DAEMON}\nopen(sys.argv[1], 'w').write(pid + ' ' + str(os.getpid()) + ' .')\n"
    text += "signal.pause()"
    with subprocess.Popen([sys.executable, "-c", PARENT, text, str(file)]) as parent:
        wait_until(lambda: file.exists() and file.read_text().endswith("."))
        pids = file.read_text().split()[:-1]
        assert all(alive(int(pid)) for pid in pids)
        parent.kill()
    wait_until(lambda: not any(alive(int(pid)) for pid in pids))
