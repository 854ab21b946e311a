"""Reading task folders: everything that the format says is read, or refused by its name."""

from __future__ import annotations

import errno
import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.bridges.harbor.conventions.make import make
from tests.bridges.harbor.folders import MakeTask
from vf.bridges.harbor.find import digest, read_tasks
from vf.bridges.harbor.model import Phase, TaskFolder
from vf.runtime.errors import ConfigError


def read(path: Path) -> TaskFolder:
    (task,) = read_tasks(path)
    return task


def problem(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        read_tasks(path)
    return str(caught.value)


def test_a_task_is_its_container_its_instruction_its_tests_and_its_solution(
    make_task: MakeTask,
) -> None:
    path = make_task(
        toml="""
[environment]
cpus = 2
memory_mb = 512
storage_mb = 1024
workdir = "/app"
env = { KIND = "test" }
[environment.healthcheck]
command = "true"
[agent]
timeout_sec = 30
user = 1000
[verifier]
timeout_sec = 20
env = { SEED = "1" }
[solution]
env = { WHO = "oracle" }
"""
    )
    task = read(path)
    assert (task.id, task.path) == ("task", path)
    world = task.world
    assert (world.build, world.image, world.compose) == (path / "environment", None, None)
    assert (world.cpus, world.memory, world.storage) == (2.0, 512 * 2**20, 2**30)
    assert (world.workdir, world.env, world.allow) == ("/app", {"KIND": "test"}, ("*",))
    assert world.healthcheck is not None
    assert world.healthcheck.retries == 3
    (part,) = task.parts
    assert part.instruction == "Write the number 42 to /app/answer.txt.\n"
    assert part.agent == Phase(30.0, "1000", ("*",))
    assert part.verifier == Phase(20.0, None, ("*",))
    assert part.tests.sources == (path / "tests",)
    assert (part.tests.path, part.tests.env) == ("/tests/test.sh", {"SEED": "1"})
    assert part.solution is not None
    assert (part.solution.path, part.solution.env) == ("/solution/solve.sh", {"WHO": "oracle"})
    assert [artifact.source for artifact in part.artifacts] == ["/logs/artifacts"]


@pytest.mark.parametrize(
    ("toml", "agent", "verifier"),
    [
        ("", ("*",), ("*",)),
        ('[environment]\nnetwork_mode = "no-network"', (), ()),
        ("[environment]\nallow_internet = false", (), ()),
        (
            '[environment]\nnetwork_mode = "no-network"\n[agent]\nnetwork_mode = "allowlist"\n'
            'allowed_hosts = ["PyPI.org", "10.0.0.0/8"]',
            ("pypi.org", "10.0.0.0/8"),
            (),
        ),
        (
            '[agent]\nnetwork_mode = "no-network"\n[verifier.environment]\n'
            'network_mode = "no-network"\n[verifier]\nnetwork_mode = "public"',
            (),
            ("*",),
        ),
    ],
)
def test_each_phase_has_its_network(
    make_task: MakeTask, toml: str, agent: tuple[str, ...], verifier: tuple[str, ...]
) -> None:
    (part,) = read(make_task(toml=toml)).parts
    assert (part.agent.allow, part.verifier.allow) == (agent, verifier)


def test_an_image_replaces_the_dockerfile(make_task: MakeTask) -> None:
    toml = '[environment]\ndocker_image = "some:image"'
    world = read(make_task(toml=toml)).world
    assert (world.image, world.build) == ("some:image", None)


def test_a_compose_file_is_taken_before_the_dockerfile(make_task: MakeTask) -> None:
    compose = "services: {main: {image: '${MAIN_IMAGE_NAME}', mem_limit: '${MEMORY}'}}"
    files = {"environment/docker-compose.yaml": compose}
    world = read(make_task(toml="[environment]\nmemory_mb = 64", files=files)).world
    assert (world.compose, world.build) == (make_task() / "environment/docker-compose.yaml", None)
    assert world.variables["MEMORY"] == "64M"
    toml = '[environment]\ndocker_image = "some:image"'
    assert "docker_image: not supported beside" in problem(make_task(toml=toml, files=files))
    files = {"environment/docker-compose.yaml": "services: {main: {image: a, privileged: true}}"}
    assert "services.main.privileged" in problem(make_task(files=files))
    toml = '[[verifier.collect]]\ncommand = "true"\nservice = "db"'
    files["environment/docker-compose.yaml"] = compose
    assert "service 'db' is none of" in problem(make_task(toml=toml, files=files))
    files["environment/docker-compose.yaml"] = "services: {main: {image: a}, db: {image: a}}"
    assert read(make_task(toml=toml, files=files)).parts[0].collect[0].service == "db"


def test_tests_with_a_dockerfile_have_a_container_of_their_own(make_task: MakeTask) -> None:
    toml = '[verifier]\nenvironment_mode = "separate"\n[verifier.environment]\nmemory_mb = 64'
    path = make_task(toml=toml, files={"tests/Dockerfile": "FROM scratch"})
    (part,) = read(path).parts
    assert part.own is not None
    assert (part.own.build, part.own.memory) == (path / "tests", 64 * 2**20)
    assert part.tests.sources == ()


def test_tests_apart_without_an_image_have_the_tasks(make_task: MakeTask) -> None:
    path = make_task(toml='[verifier]\nenvironment_mode = "separate"')
    (part,) = read(path).parts
    assert part.own is not None
    assert part.own.build == path / "environment"
    assert part.tests.sources == (path / "tests",)


def test_steps_take_from_the_task_what_they_do_not_say(make_task: MakeTask) -> None:
    path = make_task(
        toml="""
multi_step_reward_strategy = "final"
artifacts = ["/app/log"]
[agent]
timeout_sec = 60
user = "root"
[verifier]
timeout_sec = 30
env = { A = "1", B = "1" }
[[verifier.collect]]
command = "date > /app/log"
[[steps]]
name = "one"
min_reward = 0.5
artifacts = [{ source = "/app/one", destination = "first", exclude = ["cache"] }]
[[steps]]
name = "two"
min_reward = { style = 1 }
[steps.agent]
timeout_sec = 10
[steps.verifier]
env = { B = "2" }
[steps.healthcheck]
command = "true"
""",
        files={
            "instruction.md": None,
            "steps/one/instruction.md": "One.",
            "steps/one/workdir/setup.sh": "true",
            "steps/two/instruction.md": "Two.",
            "steps/two/tests/test.sh": "true",
            "steps/two/solution/solve.sh": "true",
        },
    )
    task = read(path)
    one, two = task.parts
    assert task.strategy == "final"
    assert (one.name, one.instruction, two.instruction) == ("one", "One.", "Two.")
    assert (one.agent.seconds, two.agent.seconds, two.agent.user) == (60.0, 10.0, "root")
    assert (one.verifier.seconds, two.verifier.seconds) == (30.0, 30.0)
    assert (one.tests.env, two.tests.env) == ({"A": "1", "B": "1"}, {"A": "1", "B": "2"})
    assert one.tests.sources == (path / "tests",)
    assert two.tests.sources == (path / "tests", path / "steps/two/tests")
    assert one.solution is not None
    assert one.solution.sources == (path / "solution",)
    assert two.solution is not None
    assert two.solution.sources == (path / "steps/two/solution",)
    assert (one.files, one.setup) == (path / "steps/one/workdir", True)
    assert (two.files, two.setup) == (None, False)
    assert (one.min_reward, two.min_reward) == ({"reward": 0.5}, {"style": 1.0})
    kept = [(each.source, str(each.kept_as)) for each in one.artifacts]
    expected = [("/logs/artifacts", "logs/artifacts"), ("/app/log", "app/log")]
    assert kept == [*expected, ("/app/one", "first")]
    assert [hook.command for hook in two.collect] == ["date > /app/log"]
    assert two.healthcheck is not None


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ("[environment]\ngpus = 1", "task.toml: environment.gpus: a GPU"),
        ('[environment]\nos = "windows"', "environment.os: an operating system"),
        ("[environment.tpu]\ntype = 'v4'\ntopology = '2x2'", "environment.tpu: a TPU"),
        ('[[environment.mcp_servers]]\nname = "x"', "environment.mcp_servers: an MCP server"),
        ('[verifier.environment]\nskills_dir = "/x"', "verifier.environment.skills_dir: a folder"),
        ("[agent]\ntimeout = 3", "agent.timeout: unknown key. Did you mean 'timeout_sec'?"),
        ("[verifier]\nenvironment_mode = 'apart'", "verifier.environment_mode = 'apart'"),
        ("[environment]\nallowed_hosts = ['a.b']", "allowed_hosts is for network_mode"),
        ("[agent]\nnetwork_mode='allowlist'\nallowed_hosts=['http://a.b/']", "is no host"),
        ("[environment]\nmemory = '2G'\nmemory_mb = 1", "memory and memory_mb say different"),
        ("[environment]\nworkdir = 'app'", "environment.workdir: 'app' must be an absolute path"),
        ("artifacts = ['/a/../b']", "artifacts[0]: source '/a/../b' must be"),
        ("artifacts = [{ source = '/a', exclude = ['*.pyc'] }]", "exclude takes names"),
        ("multi_step_reward_strategy = 'mean'", "is for tasks with [[steps]]"),
        ("[[steps]]\nname = '../x'", "steps[0].name: '../x' must be the name of a folder"),
        ("[[steps]]\nname = 'a'\n[[steps]]\nname = 'A'", "two steps are called 'a'"),
        ("x = ", "is not valid TOML"),
    ],
)
def test_what_is_not_done_is_refused_by_file_and_key(
    make_task: MakeTask, toml: str, said: str
) -> None:
    path = make_task(toml=toml)
    assert str(path / "task.toml") in problem(path)
    assert said in problem(path)


def test_steps_of_several_users_are_refused(tmp_path: Path) -> None:
    folder = make(tmp_path, only=["steps-mean"]) / "steps-mean"
    toml = folder / "task.toml"
    toml.write_text(toml.read_text() + '[steps.agent]\nuser = "robin"\n')
    assert f"{toml}: steps[1].agent.user: another user" in problem(folder)


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("trajectory.json", "{}", "a conversation that the agent begins with is not supported"),
        ("tests/.harborignore", "", "a list of files that are left out is not supported"),
        ("environment/docker-compose.yml", "", "another name of docker-compose.yaml"),
        ("instruction.md", None, "which says what to do"),
        ("instruction.md", " \n", "is empty"),
        ("tests/test.sh", None, "which verifies the task"),
        ("solution/solve.sh", None, "there is no"),
        ("environment/Dockerfile", None, "nothing says what the container is made from"),
    ],
)
def test_a_file_that_is_missing_or_not_supported_is_named(
    make_task: MakeTask, file: str, text: str | None, said: str
) -> None:
    path = make_task(files={file: text, "solution/notes.txt": ""})
    found = problem(path)
    assert said in found or "holds no solve.sh" in found
    assert str(path) in found


def test_metadata_is_free_and_marks_against_training_are_left_out(make_task: MakeTask) -> None:
    path = make_task(
        toml='source = "x"\n[task]\nname = "a/b"\n[metadata]\ndifficulty = "hard"\nanything = [1]',
        files={"instruction.md": "<!-- my canary GUID 1 -->\n# canary 2\n\nDo it.\n"},
    )
    task = read(path)
    assert task.metadata == {"difficulty": "hard", "anything": [1]}
    assert task.parts[0].instruction == "Do it.\n"


def test_terminal_benchs_older_format(tmp_path: Path, make_task: MakeTask) -> None:
    older = {
        "task.yaml": "instruction: |-\n  Do it.\ndifficulty: easy\nparser_name: pytest\n"
        "max_agent_timeout_sec: 100.0\nmax_test_timeout_sec: 50.0\ntags: [a, b]\n",
        "Dockerfile": "FROM vf-sandbox:latest\n",
        "run-tests.sh": "pytest -rA $TEST_DIR/test_outputs.py\n",
        "tests/test_outputs.py": "def test(): pass\n",
        "solution.sh": "true\n",
    }
    gone = dict.fromkeys(
        ["task.toml", "instruction.md", "environment/Dockerfile", "tests/test.sh"], None
    )
    path = make_task(files=gone | older | {"solution/solve.sh": None})
    task = read(path)
    (part,) = task.parts
    assert task.world.build == path
    assert (part.instruction, part.verdict) == ("Do it.", "pytest")
    assert (part.agent.seconds, part.verifier.seconds) == (100.0, 50.0)
    assert part.tests.sources == (path / "tests", path / "run-tests.sh")
    assert (part.tests.path, part.tests.env) == ("/tests/run-tests.sh", {"TEST_DIR": "/tests"})
    assert part.solution is not None
    assert part.solution.path == "/oracle/solution.sh"
    assert task.metadata == {"difficulty": "easy", "tags": ["a", "b"]}
    (path / "docker-compose.yaml").write_text(
        "services: {client: {build: ., image: '${T_BENCH_TASK_DOCKER_CLIENT_IMAGE_NAME}', "
        "volumes: ['${T_BENCH_TASK_LOGS_PATH}:${T_BENCH_CONTAINER_LOGS_PATH}']}}"
    )
    assert (read(path).world.main, read(path).world.build) == ("client", None)
    for key, said in {
        "parser_name: swebench": "parser_name = 'swebench'",
        "run_tests_in_same_shell: true": "run_tests_in_same_shell = True",
        "max_agent_timeout_secs: 3": "max_agent_timeout_secs: unknown key",
    }.items():
        (path / "task.yaml").write_text(f"instruction: Do it.\n{key}\n")
        assert said in problem(path)


def test_tasks_are_found_at_any_depth_and_named_by_their_path(make_task: MakeTask) -> None:
    folder = make_task("b").parent
    make_task("group/a")
    make_task(".git/c")
    make_task("b/environment/inner")  # part of a task, and none of its own
    assert [task.id for task in read_tasks(folder)] == ["b", "group/a"]
    assert [task.id for task in read_tasks(folder, only=["group/*"])] == ["group/a"]
    assert [task.id for task in read_tasks(folder, skip=["group/*"])] == ["b"]
    with pytest.raises(ConfigError, match=r"the pattern 'groups/\*' matches none"):
        read_tasks(folder, skip=["groups/*"])
    with pytest.raises(ConfigError, match="there is no folder"):
        read_tasks(folder / "none")
    with pytest.raises(ConfigError, match=r"contains no task: no task\.toml and no task\.yaml"):
        read_tasks(folder / "b" / "tests")


def test_all_broken_tasks_are_named_at_once(make_task: MakeTask) -> None:
    for number in range(12):
        folder = make_task(f"t{number:02}", toml="[agent]\nx = 1").parent
    said = problem(folder)
    assert "t00/task.toml: agent.x: unknown key" in said
    assert "t09" in said
    assert said.endswith("and 2 more tasks")


def test_links_to_tasks_are_followed(make_task: MakeTask, tmp_path: Path) -> None:
    folder = make_task("set/a").parent
    elsewhere = make_task("elsewhere/group/c").parent.parent
    (folder / "b").symlink_to(make_task("other/b"))
    (folder / "more").symlink_to(elsewhere)
    found = read_tasks(folder)
    assert [task.id for task in found] == ["a", "b", "more/group/c"]
    (tmp_path / "linked").symlink_to(folder)
    assert [task.id for task in read_tasks(tmp_path / "linked")] == ["a", "b", "more/group/c"]


def unless_locked(scandir: Any, folder: Path) -> Any:
    """List a folder as one who is not root does."""
    if folder.name == "locked":
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    return scandir(folder)


def test_what_should_be_a_task_and_is_none_is_named(
    make_task: MakeTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_task("set/a").parent
    (folder / "docs" / "pictures").mkdir(parents=True)
    (folder / "docs" / "pictures" / "one.png").touch()
    (folder / "README.md").touch()
    assert [task.id for task in read_tasks(folder)] == ["a"]
    wrong = {
        "gone": r"gone is a link to \S*nowhere, which is not there",
        "group/file": r"group/file is a link to \S*nowhere, which is not there",
        "round": "round is a link to a folder that it is in",
        "twin": "twin is the same folder as the task a",
        "no-toml": r"no-toml has no task\.toml and no task\.yaml",
        "parts": r"parts has no task\.toml and no task\.yaml",
        "broken": r"broken has no task\.toml",
        "hollow": "hollow is empty",
        "upper": r"upper has no task\.toml",
        "locked": r"locked cannot be read \(Permission denied\)",
    }
    for name in ("upper", "locked"):
        (folder / name).mkdir()
    (folder / "upper" / "Task.toml").touch()
    monkeypatch.setattr(os, "scandir", partial(unless_locked, os.scandir))
    (folder / "group").mkdir()
    (folder / "hollow").mkdir()
    for name in ("gone", "group/file"):
        (folder / name).symlink_to(tmp_path / "nowhere")
    (folder / "round").symlink_to(folder)
    (folder / "twin").symlink_to(folder / "a")
    for name in ("no-toml", "broken"):
        (make_task(f"set/{name}") / "task.toml").unlink()
    (folder / "broken" / "task.toml").symlink_to("task.toml")
    for part in ("tests", "environment"):
        (folder / "parts" / part).mkdir(parents=True)
    said = problem(folder)
    for each in wrong.values():
        assert re.search(f"{each}.*; repair or remove it, or name it in skip", said), each
    assert [task.id for task in read_tasks(folder, skip=list(wrong))] == ["a"]
    assert [task.id for task in read_tasks(folder, only=["a"])] == ["a"]


def test_a_digest_changes_with_any_file(make_task: MakeTask) -> None:
    path = make_task()
    before = digest(path)
    assert digest(path) == before
    (path / "tests" / "test.sh").write_text("false")
    assert digest(path) != before
