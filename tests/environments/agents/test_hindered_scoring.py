"""A model's doing in the place where it is scored: no way out of a score, and none to a better one.

The model may run what it likes there, as that of an agent with a shell can.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.environments.agents.programs import ASK, agent, play

LOCAL = {"backend": "local", "unsafe_local": True}
REPORT = """
import json, os, urllib.request
urllib.request.urlopen(urllib.request.Request(
    os.environ["VF_REWARD_URL"], json.dumps({"reward": 0.25}).encode(),
    {"Authorization": "Bearer " + os.environ["VF_REWARD_KEY"]}))
"""
BEGIN = ASK + "\nfolder = os.path.dirname(os.environ['VF_TASK'])\nask()\n"
IN_THE_WAY = """
for name in ("task.json", "scored_task.json", "output.txt"):
    if os.path.exists(f"{folder}/{name}"):
        os.remove(f"{folder}/{name}")
    os.MAKE(f"{folder}/{name}")
"""
NOTHING = "import shutil\nfor path in (folder, os.getcwd()): shutil.rmtree(path, True)"
OTHER = f"open('score.py', 'w').write({REPORT.replace('0.25', '1.0')!r})"
AT_HOME = f"""
import site
folder = site.getusersitepackages()
os.makedirs(folder, exist_ok=True)
open(folder + "/usercustomize.py", "w").write({REPORT.replace("0.25", "1.0")!r})
"""


@pytest.fixture(
    params=[
        "none",
        "sandboxed folder",
        pytest.param("folder", marks=pytest.mark.slow),
        pytest.param("sandbox", marks=pytest.mark.slow),
    ]
)
def settings(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, object]:
    """Return the settings of a program beside those that score it."""
    monkeypatch.chdir(tmp_path)
    sandboxed = "sandbox" in request.param
    settings: dict[str, object] = {"sandbox": LOCAL if sandboxed else "none", "rubric": None}
    if "folder" in request.param:
        settings["folder"] = tmp_path
    return settings


@pytest.mark.parametrize(
    "does",
    [
        NOTHING,
        IN_THE_WAY.replace("MAKE", "mkdir"),
        IN_THE_WAY.replace("MAKE", "mkfifo"),
        OTHER,
        "os.mkfifo('x')\nif os.path.exists('score.py'): os.remove('score.py')",
        AT_HOME,
    ],
    ids=["remove all", "folders", "pipes", "another program", "remove it", "in its home"],
)
def test_a_program_cannot_change_how_it_is_scored(
    does: str, settings: dict[str, object], tmp_path: Path
) -> None:
    (tmp_path / "score.py").write_text(REPORT)
    (tmp_path / "agent.py").write_text(BEGIN + does)
    environment = agent(["python", "agent.py"], score_command=["python", "score.py"], **settings)
    trace = play(environment)
    assert trace.error is None
    assert trace.reward == 0.25


def test_who_leaves_no_place_to_be_scored_in_gets_no_reward() -> None:
    does = "import shutil\nshutil.rmtree('.vf')\nopen('.vf', 'w').close()"
    score = ["python", "-c", REPORT]
    environment = agent(
        ["python", "-c", BEGIN + does], score_command=score, sandbox=LOCAL, rubric=None
    )
    trace = play(environment)
    assert (trace.error, trace.reward) == (None, 0.0)
    assert "could not run" in trace.info["program"]["score_command"]


@pytest.mark.docker
def test_who_ends_the_sandbox_before_it_is_scored_gets_no_reward() -> None:
    sandbox = {"backend": "docker", "lifetime": 8.0}
    environment = agent(
        ["python", "-c", BEGIN + "os.kill(-1, 9)\nsignal.pause()"],
        score_command=["python", "-c", REPORT],
        sandbox=sandbox,
        rubric=None,
    )
    trace = play(environment)
    assert (trace.error, trace.reward) == (None, 0.0)


DAEMON = f"""
import glob
if os.fork() == 0:
    os.setsid()
    for fd in range(3):
        os.close(fd)
    while True:
        for path in glob.glob("**/score.py", recursive=True, include_hidden=True):
            try:
                open(path, "w").write({REPORT.replace("0.25", "1.0")!r})
            except OSError:
                pass
"""


@pytest.mark.parametrize(
    "sandbox",
    [
        pytest.param("docker", marks=pytest.mark.docker),
        pytest.param("bubblewrap", marks=pytest.mark.bubblewrap),
        LOCAL,
    ],
    ids=["docker", "bubblewrap", "local"],
)
def test_a_daemon_does_not_see_how_it_is_scored(
    sandbox: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "score.py").write_text(REPORT)
    (tmp_path / "agent.py").write_text(BEGIN + DAEMON)
    environment = agent(
        ["python", "agent.py"],
        score_command=["python", "score.py"],
        sandbox=sandbox,
        rubric=None,
    )
    trace = play(environment)
    assert (trace.error, trace.reward) == (None, 0.25)
