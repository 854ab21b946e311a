"""The process in an actor, without Ray around it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import alive, wait_until
from vf.cluster.fleet import HOST, PORT, Command
from vf.cluster.ray_node import HERE_ONLY, Post, elsewhere, outside_ray
from vf.runtime.errors import ConfigError
from vf.runtime.lifeline import children

PYTHON = ["python", "-S", "-c"]
# Writes its child's process id to a file, and both wait.
PARENT = """
import os, signal, sys
if (pid := os.fork()):
    with open(sys.argv[1] + ".part", "w") as file:
        file.write(str(pid))
    os.rename(sys.argv[1] + ".part", sys.argv[1])
signal.pause()
"""


@pytest.fixture
def post() -> Iterator[Post]:
    made = Post("127.0.0.1")
    yield made
    made.stop(0)


def output(post: Post) -> tuple[bytes, int]:
    """Return all of a process's output, and its exit status."""
    text = b""
    while True:
        more, code = post.read()
        text += more
        if code is not None:
            return text, code


def test_output_and_exit_status_come_back(post: Post) -> None:
    code = "import sys; print('one'); print('two', file=sys.stderr); sys.exit(3)"
    post.begin(Command([*PYTHON, code]), os.environ, "/")
    assert output(post) == (b"one\ntwo\n", 3)


def test_a_signal_is_a_negative_status(post: Post) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    post.begin(Command([*PYTHON, code]), os.environ, "/")
    assert output(post) == (b"", -signal.SIGKILL)


@pytest.mark.parametrize("status", [127, 128, 255])
def test_a_status_that_is_no_signals_stays_as_it_is(post: Post, status: int) -> None:
    post.begin(Command([*PYTHON, f"import sys; sys.exit({status})"]), os.environ, "/")
    assert output(post) == (b"", status)


def test_the_machines_own_variables_come_before_the_askers(
    post: Post, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("VF_OF_MACHINE", "machine")
    monkeypatch.setenv("RAY_OF_ACTOR", "actor")
    asked = {"VF_OF_MACHINE": "asker", "VF_OF_ASKER": "asker"}
    code = (
        "import os; print(*(os.environ.get(n) for n in "
        "('VF_OF_MACHINE', 'VF_OF_ASKER', 'VF_GIVEN', 'RAY_OF_ACTOR')), os.getcwd())"
    )
    command = Command([*PYTHON, code], {"VF_GIVEN": f"{HOST}:{PORT}"})
    host, port = post.begin(command, asked, str(tmp_path))
    assert host == "127.0.0.1"
    assert output(post) == (f"machine asker 127.0.0.1:{port} None {tmp_path}\n".encode(), 0)
    assert outside_ray({"RAY_X": "1", "Y": "2"}) == {"Y": "2"}


def threads(post: Post, asked: dict[str, str]) -> list[str]:
    """Return the number of threads that a process is given, and what it keeps to itself."""
    code = f"import os; print(os.environ['OMP_NUM_THREADS'], os.environ.get('{HERE_ONLY}'))"
    post.begin(Command([*PYTHON, code]), asked, "/")
    return output(post)[0].decode().split()


def test_the_askers_threads_come_before_those_that_ray_counts(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "8")  # as Ray does for an actor of eight cores
    assert threads(post, {"OMP_NUM_THREADS": "1"}) == ["1", "None"]
    assert threads(Post("127.0.0.1"), {}) == ["8", "OMP_NUM_THREADS"]


def test_what_is_a_processs_own_does_not_go_to_other_machines() -> None:
    asking = {
        "CUDA_VISIBLE_DEVICES": "3",
        "RAY_X": "1",
        "OMP_NUM_THREADS": "8",
        "NCCL_SOCKET_IFNAME": "eth0",
        "GLOO_SOCKET_IFNAME": "eth1",
        "HOME": "/root",
        HERE_ONLY: "OMP_NUM_THREADS NCCL_SOCKET_IFNAME",
    }
    assert elsewhere(asking) == {"GLOO_SOCKET_IFNAME": "eth1", "HOME": "/root"}
    assert elsewhere({"OMP_NUM_THREADS": "8"}) == {"OMP_NUM_THREADS": "8"}
    assert elsewhere({"OMP_NUM_THREADS": "1", "RAY_JOB_CONFIG_JSON_ENV_VAR": "{}"}) == {}


def test_a_program_that_is_not_there_is_a_wrong_setting(post: Post) -> None:
    with pytest.raises(ConfigError, match="no program 'vf-no-such-program'"):
        post.begin(Command(["vf-no-such-program"]), os.environ, "/")


def test_stopping_ends_all_that_was_started(post: Post, tmp_path: Path) -> None:
    post.begin(Command([*PYTHON, PARENT, str(tmp_path / "pid")]), os.environ, "/")
    pid = int(wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()))
    post.stop(5)
    assert output(post) == (b"", -signal.SIGTERM)
    assert not alive(pid)


@pytest.mark.slow
@pytest.mark.gate
def test_all_of_it_ends_where_ray_kills_the_actors_children(post: Post, tmp_path: Path) -> None:
    before = set(children())
    post.begin(Command([*PYTHON, PARENT, str(tmp_path / "pid")]), os.environ, "/")
    pid = int(wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()))
    (direct,) = set(children()) - before
    os.kill(direct, signal.SIGKILL)
    wait_until(lambda: not alive(pid))
