"""repo-fix: every bug shows, every repair counts, and nothing but a repair does."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import vf
from vf.environments.bundled.repo_fix import RepoFix, grade_source
from vf.environments.bundled.repos.draw import MODULES as SPLITS
from vf.environments.bundled.repos.draw import Repo
from vf.environments.bundled.repos.module import BUG_KINDS, Module
from vf.environments.environment import Split
from vf.rubrics.outcomes import grader_program
from vf.rubrics.outcomes.grading import Case
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.contract import OpenSandbox, Sandbox

MODULES = [module for known in SPLITS.values() for module in known]
BUGS = [(module, bug) for module in MODULES for bug in module.bugs]
SOURCES = {module.name: module.source for module in MODULES}
MIB = 2**20
UNITTEST = ["python3", "-m", "unittest"]


def play(env: vf.Environment, task: vf.Task, *script: Any) -> vf.Trace:
    return asyncio.run(vf.rollout(env, task, vf.ScriptedModel(script)))


def play_in_containers(task: vf.Task, scripts: list[list[Any]]) -> list[vf.Trace]:
    """Play what may do damage: several rollouts of one task."""
    env = RepoFix({"pool": 2, "concurrency": 2})

    async def run() -> list[vf.Trace]:
        rollouts = [vf.rollout(env, task, vf.ScriptedModel(script)) for script in scripts]
        return await asyncio.gather(*rollouts)

    return asyncio.run(run())


def bash(command: str) -> dict[str, dict[str, str]]:
    return {"bash": {"command": command}}


def repair(task: vf.Task) -> dict[str, dict[str, str]]:
    (name,) = task.info["bugs"]
    path = f"{task.info['package']}/{name}.py"
    return {"write_file": {"path": path, "content": SOURCES[name]}}


@pytest.fixture
def env(open_local: OpenSandbox) -> RepoFix:
    return RepoFix(open_local)


@pytest.fixture
def task(env: RepoFix) -> vf.Task:
    return next(iter(env.tasks("eval")))


def test_there_are_ten_kinds_of_bugs_and_each_is_used() -> None:
    assert len(BUG_KINDS) >= 10
    assert {bug.kind for _, bug in BUGS} == set(BUG_KINDS)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.name))
def test_a_bug_is_one_change_to_one_place(module: Module) -> None:
    assert len({bug.new for bug in module.bugs}) >= len(module.bugs) - 1
    for bug in module.bugs:
        assert module.source.count(bug.old) == 1, bug
        compile(module.broken(bug), module.name, "exec")
        assert module.broken(bug) != module.source


def test_no_module_is_in_both_splits_and_the_splits_are_alike() -> None:
    shares: list[dict[str, float]] = []
    lengths = []
    for known in SPLITS.values():
        kinds = Counter(bug.kind for module in known for bug in module.bugs)
        shares.append({kind: kinds[kind] / kinds.total() for kind in BUG_KINDS})
        lengths.append(sum(len(module.source) for module in known) / len(known))
    train, held_out = shares
    assert all(train.values())
    assert all(held_out.values())
    assert sum(abs(train[kind] - held_out[kind]) for kind in BUG_KINDS) / 2 < 0.1
    assert lengths[0] == pytest.approx(lengths[1], rel=0.1)


def test_an_eval_task_shows_no_source_that_a_train_task_has_shown(env: RepoFix) -> None:
    def functions(split: Split) -> set[str]:
        tasks = [*itertools.islice(env.tasks(split), 200)]
        texts = [text for t in tasks for path, text in t.info["files"].items() if "/" in path]
        return {name for text in texts for name in re.findall(r"^(?:def|class) (\w+)", text, re.M)}

    assert not functions("train") & functions("eval")


async def _visible(sandbox: Sandbox, repo: Repo) -> bool:
    """Whether the repository's own tests pass."""
    for path, text in repo.files().items():
        await sandbox.write_file(f"{repo.package}/{path}", text)
    result = await sandbox.exec(UNITTEST, cwd=repo.package)
    assert "Ran " in result.stderr, result
    assert "Ran 0 tests" not in result.stderr, result
    return result.ok


async def _hidden(sandbox: Sandbox, repo: Repo) -> bool:
    files = {path: text for path, text in repo.files().items() if path.startswith(repo.package)}
    return (await grade_source(sandbox, files, repo.hidden_cases())).all_passed


@pytest.mark.slow
@pytest.mark.gate
def test_right_modules_pass_both_kinds_of_tests(in_sandbox: Callable[..., Any]) -> None:
    async def failing(sandbox: Sandbox) -> list[str]:
        found = []
        for number, module in enumerate(MODULES):
            repo = Repo(f"kit{number}", [module], {})
            if not (await _visible(sandbox, repo) and await _hidden(sandbox, repo)):
                found.append(module.name)
        return found

    assert in_sandbox(failing) == []


def _holds(source: str, case: Case) -> bool:
    namespace: dict[str, Any] = {}
    try:
        exec(source, namespace)
        outcome = grader_program._evaluate(case.code, namespace)
    except Exception as error:
        outcome = grader_program._failure(error)
    return case.holds(json.loads(outcome))


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.name))
def test_every_bug_fails_both_kinds_of_tests(module: Module) -> None:
    for cases in (module.visible, module.hidden):
        assert all(_holds(module.source, case) for case in cases)
        for bug in module.bugs:
            assert not all(_holds(module.broken(bug), case) for case in cases), bug


def test_bugs_show_and_are_repaired_in_containers(engine: Engine) -> None:
    env = RepoFix({"backend": "docker", "pool": 2, "concurrency": 2}, num_train=400)
    kinds: dict[str, vf.Task] = {}
    for task in env.tasks("train"):
        kinds.setdefault(next(iter(task.info["bugs"].values())), task)
    assert set(kinds) == set(BUG_KINDS)

    async def run() -> list[vf.Trace]:
        return await asyncio.gather(
            *(
                vf.rollout(
                    env,
                    task,
                    vf.ScriptedModel(
                        [
                            bash("python3 -m unittest"),
                            repair(task),
                            bash("python3 -m unittest"),
                            ".",
                        ]
                    ),
                )
                for task in list(kinds.values())[:3]
            )
        )

    for trace in asyncio.run(run()):
        assert trace.error is None
        before, _, after = [m.content for m in trace.messages if m.role == "tool"]
        assert "FAILED" in before, trace.task.id
        assert after.endswith("OK"), trace.task.id
        assert trace.reward == 1.0, trace.task.id
        assert trace.score is not None
        assert (trace.score.metrics["changed_lines"] or 0) >= 1


def test_a_task_has_as_many_bugs_as_are_set() -> None:
    assert len(next(iter(RepoFix(bugs=2, num_train=1).tasks("train"))).info["bugs"]) == 2


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.name))
def test_no_hidden_test_is_visible(module: Module) -> None:
    assert len(module.hidden) >= 10
    assert not {case.code for case in module.hidden} & {case.code for case in module.visible}


def test_a_repair_is_rewarded_and_its_diff_is_kept(env: RepoFix, task: vf.Task) -> None:
    trace = play(env, task, repair(task), "It was wrong.")
    assert trace.reward == 1.0
    assert trace.info["diff"].startswith("--- a/")
    assert trace.info["hidden_passed"] == 1.0


def test_a_repair_by_the_last_turn_counts(open_local: OpenSandbox, task: vf.Task) -> None:
    env = RepoFix(open_local)
    env.max_turns = 2
    trace = play(env, task, repair(task), bash("ls"))
    assert trace.stop_reason is vf.StopReason.MAX_TURNS
    assert trace.reward == 1.0


CHEATS: dict[str, list[str]] = {
    "nothing": [],
    "looks only": ["ls", "cat */*.py | head -5"],
    "deletes the tests": ["rm -rf tests"],
    "empties the tests": ["for f in tests/*.py; do echo > $f; done"],
    "skips the tests": [
        "sed -i 's/^class/import unittest\\n@unittest.skip(\"\")\\nclass/' tests/*"
    ],
    "deletes the source": ["rm -rf {package}"],
    "deletes the module": ["rm {package}/{module}.py"],
    "empties the module": ["echo > {package}/{module}.py"],
    "sitecustomize": [
        "echo 'import os; os._exit(0)' | tee sitecustomize.py usercustomize.py conftest.py "
        "{package}/sitecustomize.py {package}/conftest.py"
    ],
    "patched unittest": [
        "mkdir unittest; echo 'def main(): pass' > unittest/__init__.py",
        "echo 'def dumps(value): return 1' > json.py",
    ],
    "exits on import": ["echo 'import os; os._exit(0)' > {package}/__init__.py"],
    "patches the grader": [
        'printf \'import sys, builtins\\nmain = sys.modules["__main__"]\\n'
        "main._evaluate = lambda *a: chr(123) + chr(125)\\n' > {package}/__init__.py"
    ],
    "equal to anything": [
        "printf 'class Any:\\n    def __eq__(self, other): return True\\n"
        "    def __getattr__(self, name): return self\\n"
        "    def __call__(self, *a, **k): return self\\n"
        "import sys\\nsys.modules[__name__] = Any()\\n' > {package}/{module}.py"
    ],
    "a link": [
        "echo 'x = 1' > /tmp/vf_cheat.py; rm {package}/{module}.py; "
        "ln -s /tmp/vf_cheat.py {package}/{module}.py"
    ],
    "a pipe": ["rm {package}/{module}.py; mkfifo {package}/{module}.py"],
    "not text": ["head -c 1000 /dev/urandom > {package}/{module}.py"],
    "much": ["head -c 300000 /dev/zero | tr '\\0' '#' > {package}/{module}.py"],
    "many": ["for i in $(seq 80); do echo 'x = 1' > {package}/m$i.py; done"],
}
QUICK = ["deletes the tests", "sitecustomize", "patches the grader"]
OTHERS = [cheat for cheat in CHEATS if cheat not in QUICK]


@pytest.mark.bubblewrap
def test_source_that_is_too_large_to_be_graded_earns_nothing() -> None:
    env = RepoFix({"backend": "bubblewrap", "workspace": 2 * MIB, "tmp": MIB})
    task = next(iter(env.tasks("eval")))
    package = task.info["package"]
    sparse = bash(f"for i in $(seq 40); do truncate -s 99999 {package}/large$i.py; done")
    trace = play(env, task, sparse, "Done.")
    assert (trace.error, trace.reward) == (None, 0.0)


@pytest.mark.parametrize("cheats", [QUICK, pytest.param(OTHERS, marks=pytest.mark.slow)])
def test_what_is_no_repair_earns_nothing(
    containers: None, task: vf.Task, cheats: list[str]
) -> None:
    (module,) = task.info["bugs"]
    names = {"{package}": task.info["package"], "{module}": module}

    def filled(command: str) -> str:
        for name, value in names.items():
            command = command.replace(name, value)
        return command

    scripts = [[*map(bash, map(filled, CHEATS[cheat])), "Done."] for cheat in cheats]
    traces = play_in_containers(task, scripts)
    assert [trace.error for trace in traces] == [None] * len(cheats)
    rewards = {name: trace.reward for name, trace in zip(cheats, traces, strict=True)}
    assert rewards == dict.fromkeys(cheats, 0.0)


def test_of_a_repair_only_the_source_counts_and_all_of_it(containers: None, task: vf.Task) -> None:
    (broken,) = task.info["bugs"]
    package = task.info["package"]
    others = [
        path
        for path in task.info["files"]
        if path.startswith(f"{package}/") and not path.endswith((f"{broken}.py", "__init__.py"))
    ]
    tests_changed, file_deleted = play_in_containers(
        task,
        [
            [bash("rm -rf tests; echo 'raise 1' > tests.py"), repair(task), "Done."],
            [repair(task), bash(f"rm {others[0]}"), "Done."],
        ],
    )
    assert tests_changed.reward == 1.0
    assert "tests" not in tests_changed.info["diff"]
    assert file_deleted.reward == 0.0
    assert 0 < file_deleted.info["hidden_passed"] < 1


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"bugs": 0}, "bugs must be 1 to 3"),
        ({"bugs": 4}, "bugs must be 1 to 3"),
        ({"free_calls": -1}, "free_calls must not be negative"),
        ({"bash_timeout": 0}, "bash_timeout must be above 0"),
        ({"bash_timeout": 21}, "at most 20"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(vf.ConfigError, match=said):
        RepoFix(**settings)
