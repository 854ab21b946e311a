"""A program in a sandbox: it reaches its endpoint, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

import vf
from tests.environments.agents.programs import ASK, agent, play
from vf.environments.agents.program import program
from vf.sandbox.hosting.source import sandbox_source

LOCAL = {"backend": "local", "unsafe_local": True}
PYTHON = ["python3", "-S"]


@pytest.fixture(params=["local", pytest.param("docker", marks=pytest.mark.docker)])
def sandbox(request: pytest.FixtureRequest) -> object:
    """A source of sandboxes."""
    return sandbox_source(LOCAL if request.param == "local" else "docker")


def run(text: str, sandbox: object, **settings: object) -> vf.Trace:
    return play(agent([*PYTHON, "-c", ASK + text], sandbox=sandbox, **settings))


def test_a_program_asks_from_within_and_its_files_are_read(sandbox: object) -> None:
    trace = run(
        "open('report.md', 'w').write(ask())\nprint(json.load(open(os.environ['VF_TASK'])))",
        sandbox,
        collect=["*.md", "**/*.json"],
    )
    assert trace.error is None
    assert trace.info["output"] == "{'id': 't', 'prompt': 'What is 2 + 2?', 'info': {'level': 1}}\n"
    assert trace.info["files"] == {"report.md": "4"}
    assert trace.info["program"] == {"exit_code": 0, "stderr": ""}


def test_the_agents_folder_and_files_are_copied(
    sandbox: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "main.py").write_text(f"{ASK}\nimport words\nask()\nprint(words.WORDS)")
    (tmp_path / "words.py").write_text("WORDS = 'some'")
    with_folder = agent([*PYTHON, "main.py"], sandbox=sandbox, folder=tmp_path)
    assert play(with_folder).info["output"] == "some\n"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "main.py").write_text(f"{ASK}\nprint(ask())")
    assert play(agent([*PYTHON, "main.py"], sandbox=sandbox)).info["output"] == "4\n"


@pytest.mark.slow
def test_a_program_that_takes_too_long_is_stopped_and_its_files_are_read(sandbox: object) -> None:
    text = "ask()\nopen('report.md', 'w').write('half')\nsignal.pause()"
    trace = run(text, sandbox, collect=["report.md"], timeout=4.0)
    assert (trace.error, trace.stop_reason) == (None, vf.StopReason.TRUNCATED)
    assert trace.info["files"] == {"report.md": "half"}


def test_a_crash_is_the_agents_own(sandbox: object) -> None:
    trace = run("ask()\nsys.exit('no')", sandbox)
    assert (trace.error, trace.reward) == (None, 0.0)
    assert trace.info["program"] == {"exit_code": 1, "stderr": "no\n"}


SCORE = """
import json, os, urllib.request
right = open("answer.txt").read() == json.load(open(os.environ["VF_TASK"]))["answer"]
urllib.request.urlopen(urllib.request.Request(
    os.environ["VF_REWARD_URL"], json.dumps({"reward": 0.75 * right}).encode(),
    {"Authorization": "Bearer " + os.environ["VF_REWARD_KEY"]}))
"""


def test_a_second_program_scores_in_the_same_sandbox(sandbox: object) -> None:
    score = [*PYTHON, "-c", SCORE]
    text = "open('answer.txt', 'w').write(ask())"
    trace = run(text, sandbox, score_command=score, rubric=None)
    assert (trace.error, trace.reward) == (None, 0.75)


REACH = """
import socket, urllib.request
print(ask())
def reach(host, port):
    try:
        socket.create_connection((host, port), timeout=2).close()
        return "reached"
    except OSError:
        return "refused"
own = int(os.environ["OPENAI_BASE_URL"].split(":")[2].split("/")[0])
print(reach("127.0.0.1", own), reach("127.0.0.1", 22), reach("1.1.1.1", 53),
      reach("172.17.0.1", 22), sep=",")
other = urllib.request.Request(os.environ["ANTHROPIC_BASE_URL"] + "x/v1/models")
try:
    urllib.request.urlopen(other)
except urllib.error.HTTPError as error:
    print(error.code)
"""


@pytest.mark.docker
def test_nothing_but_the_endpoint_can_be_reached() -> None:
    trace = run(REACH, sandbox_source("docker"))
    assert trace.info["output"].split() == ["4", "reached,refused,refused,refused", "404"]


@pytest.mark.docker
def test_a_program_that_ends_its_sandbox_is_scored() -> None:
    sandbox = sandbox_source({"backend": "docker", "lifetime": 20.0})
    trace = run("ask()\nos.kill(-1, 9)\nsignal.pause()", sandbox, collect=["*"], timeout=60.0)
    assert trace.error is None
    assert trace.reward == 0.0


def test_a_sandbox_is_a_setting_like_any_others() -> None:
    made = program(["agent"], tasks=[], sandbox={"backend": "docker", "pool": 2})
    assert len(made.services) == 1
