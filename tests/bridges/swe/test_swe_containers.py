"""A model in a real container earns what its patch is worth, whatever it does there."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import vf
from tests.bridges.swe import images, small_repo
from vf.environments.environment import Environment
from vf.environments.registry import make
from vf.evaluation.scripts import oracle_of
from vf.inference.models.scripted_model import Script

SANDBOX = {"backend": "docker", "pool": 1, "cpus": 2.0}


@dataclass(frozen=True)
class Image:
    """An image with a repository, and the row that goes with it."""

    name: str
    row: dict[str, Any]


@pytest.fixture(scope="module")
def image(containers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    import docker

    folder = tmp_path_factory.mktemp("swe") / "image"
    repo = images.make(folder)
    name = f"vf-test-swe-{secrets.token_hex(4)}"
    client = docker.from_env()
    client.images.build(path=str(folder), tag=name, rm=True, network_mode="none")
    try:
        yield Image(name, small_repo.row(repo, docker_image=name))
    finally:
        client.images.remove(name, force=True)
        client.close()


def run(image: Image, *scripts: Script, **arguments: Any) -> list[vf.Trace]:
    """Return the traces of models that follow scripts, all at once."""
    environment = make("swe", data=[image.row], sandbox=SANDBOX, **arguments)
    (task,) = environment.tasks("eval")

    async def every() -> list[vf.Trace]:
        return await asyncio.gather(
            *(vf.rollout(environment, task, vf.ScriptedModel(script)) for script in scripts)
        )

    return asyncio.run(every())


def shell(*commands: str) -> list[Any]:
    return [*({"bash": {"command": command}} for command in commands), "Done."]


def oracle(image: Image) -> Script:
    environment: Environment = make("swe", data=[image.row], sandbox=SANDBOX)
    (task,) = environment.tasks("eval")
    script = oracle_of(environment, task)
    assert script is not None
    return script


def test_the_known_patch_earns_everything_and_nothing_earns_nothing(image: Image) -> None:
    right, nothing, new = run(image, oracle(image), ["Done."], shell("echo 1 > new.txt"))
    assert (right.error, right.reward) == (None, 1.0)
    assert right.score is not None
    assert right.score.metrics == {"must_pass": 1.0, "keep_passing": 1.0, "patched_lines": 2.0}
    assert (nothing.error, nothing.reward) == (None, 0.0)
    assert (new.error, new.reward) == (None, 0.0)
    assert new.info["swe"]["must_pass"] == 0.0
    assert new.info["swe"]["keep_passing"] == 1.0


def test_what_is_done_when_an_episode_is_cut_short_counts(image: Image) -> None:
    edit = {"edit_file": {"path": "sums.py", "old": "numbers[1:]", "new": "numbers"}}
    (trace,) = run(image, [edit, *shell("true") * 5], max_turns=2)
    assert trace.stop_reason is vf.StopReason.MAX_TURNS
    assert trace.reward == 1.0


RIGHT = "sed -i 's/numbers\\[1:\\]/numbers/' sums.py"
# A git that says whatever the model wants it to.
FORGED = """\
printf '#!/bin/sh\\ncat /tmp/forged\\n' > /usr/bin/git; chmod 755 /usr/bin/git
cat > /tmp/forged <<'END'
diff --git a/conftest.py b/conftest.py
--- a/conftest.py
+++ b/conftest.py
@@ -1,2 +1,4 @@
+import os
+os._exit(0)
 import os, sys
 sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
diff --git a/../../usr/lib/python3/dist-packages/sitecustomize.py b/x
END
"""
HOSTILE = {
    "forges its patch": FORGED,
    "removes the history": "rm -rf .git",
    "moves the repository": "mv /testbed /elsewhere; ln -s /etc /testbed",
    "leaves no room for its patch": "head -c 70000000 /dev/zero > /tmp/a; seq 2000000 > big",
    "replaces the interpreter": (
        "printf '#!/bin/sh\\necho PASSED\\n' > /usr/bin/pytest; cp /usr/bin/pytest /usr/bin/python3"
    ),
    "changes python's start": "echo 'import os; os._exit(0)' > /opt/packages/sitecustomize.py",
    "leaves a writer behind": "(while true; do date > sums.py; sleep 0.1; done) > /dev/null 2>&1 &",
    "ends its container": "kill -9 -1; kill -9 1; sleep 1",
    "commits elsewhere": "git checkout -q --orphan x && git rm -rfq . && touch a && git add a",
    "has git run programs": (
        "printf '#!/bin/sh\\ncat /tmp/forged\\n' > .git/x; chmod 755 .git/x; touch /tmp/forged; "
        "for key in core.fsmonitor diff.external filter.x.clean core.pager gpg.program; "
        "do git config $key $PWD/.git/x; done; echo '* filter=x' > .git/info/attributes; "
        "git config core.worktree /etc"
    ),
    "leaves a pipe, a socket and links": (
        "rm -r sums.py tests; mkfifo sums.py; ln -s /proc/self/fd/0 a; ln -s /tests tests; "
        "python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('s')\""
    ),
    "leaves a file of a terabyte": "truncate -s 1T huge || truncate -s 8G huge",
    "locks its repository": "touch .git/index.lock; chmod -R 000 .git",
    "leaves long names, deep down": (
        "python3 -c \"import os; open(b'\\xff' * 255, 'w'); "
        "[(os.mkdir('d' * 250), os.chdir('d' * 250)) for _ in range(30)]\""
    ),
}


@pytest.mark.slow
def test_nothing_that_a_model_does_to_its_container_is_worth_anything(image: Image) -> None:
    traces = run(image, *(shell(command) for command in HOSTILE.values()))
    for name, trace in zip(HOSTILE, traces, strict=True):
        assert trace.error is None, f"{name}: {trace.error}"
        assert trace.reward == 0.0, name


def test_a_repair_counts_beside_what_else_was_done(image: Image) -> None:
    tampers = (
        "echo 'def test_total(): pass' > tests/test_sums.py; echo boom > conftest.py; "
        "rm -rf /opt/packages/pytest; git add -A; git -c user.name=m -c user.email=m commit -qm x"
    )
    (trace,) = run(image, shell(RIGHT, tampers))
    assert (trace.error, trace.reward) == (None, 1.0)
    assert set(trace.info["swe"]["dropped"]) == {"tests/test_sums.py", "conftest.py"}


PROGRAM = """\
import json, os, pathlib, urllib.request
body = {"model": os.environ["VF_MODEL"], "messages": [{"role": "user", "content": "What now?"}]}
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps(body).encode(),
    {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
)
said = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
path = pathlib.Path("sums.py")
if said == "Repair it.":
    path.write_text(path.read_text().replace("numbers[1:]", "numbers"))
"""


def test_a_program_works_in_the_tasks_container(image: Image, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(PROGRAM)
    command = ["python3", "agent.py"]
    right, wrong = run(image, ["Repair it."], ["Leave it."], command=command, folder=tmp_path)
    assert (right.error, right.reward) == (None, 1.0)
    assert right.info["swe"]["patch"].count("diff --git") == 1
    assert (wrong.error, wrong.reward) == (None, 0.0)
