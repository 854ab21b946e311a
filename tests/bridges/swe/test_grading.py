"""A patch is judged by the tests alone, whatever it does to them and to what runs them.

On this machine, unprotected: `test_swe_containers.py` has a hostile container.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import marshal
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.bridges.swe import small_repo
from tests.bridges.swe.hacks import HARMLESS, PLUGINS, STEERS, TRICKS
from vf.bridges.swe.grading import Settings, Verdict, begin, judge, take
from vf.bridges.swe.rows import Instance, instances
from vf.runtime.errors import EnvironmentFailure
from vf.sandbox.local import UnsafeLocalSandbox

Changes = dict[str, str | None]
# Without the plugins that happen to be installed here, each of which takes its time to start.
ALONE = "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 pytest -rA {files}"


class Bench:
    """A repository, its row, and copies in which something is changed, or judged."""

    def __init__(self, folder: Path, origin: Path, row: dict[str, Any]) -> None:
        self.folder, self.copies = folder, 0
        self.repo = shutil.copytree(origin, folder / "repo")
        self.row = {**row, "image_name": "x"}
        self.settings = Settings(command=ALONE)

    @property
    def instance(self) -> Instance:
        rows = iter([("the row", self.row)])
        return next(instances(rows, image=None, built=False, patch_is=None))

    def copy(self) -> Settings:
        self.copies += 1
        place = self.folder / f"copy-{self.copies}"
        shutil.copytree(self.repo, place, symlinks=True)
        return replace(self.settings, workdir=str(place))

    async def taken(self, changes: Changes, command: str = "true") -> tuple[bytes, str]:
        """Return the patch of a model that changes files, and runs a command."""
        settings = self.copy()
        async with UnsafeLocalSandbox(unsafe_local=True) as box:
            start = await begin(box, self.instance, settings)
            for path, text in changes.items():
                place = f"{settings.workdir}/{path}"
                if text is None:
                    assert (await box.exec(["rm", place])).ok
                else:
                    await box.write_file(place, text)
            assert (await box.exec(command, cwd=settings.workdir)).ok
            return await take(box, start, settings)

    async def judged(self, patch: bytes) -> Verdict:
        async with UnsafeLocalSandbox(unsafe_local=True) as box:
            return await judge(box, self.instance, patch, self.copy())

    def verdict(self, changes: Changes, command: str = "true") -> Verdict:
        async def run() -> Verdict:
            patch, problem = await self.taken(changes, command)
            assert not problem
            return await self.judged(patch)

        return asyncio.run(run())


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A repository of which every bench has a copy, and its row."""
    repo = small_repo.make(tmp_path_factory.mktemp("swe") / "repo")
    return repo, small_repo.row(repo)


@pytest.fixture
def bench(tmp_path: Path, origin: tuple[Path, dict[str, Any]]) -> Bench:
    return Bench(tmp_path, *origin)


def test_the_known_repair_passes_every_test(bench: Bench) -> None:
    bench.settings = Settings()
    found = asyncio.run(bench.judged(bench.instance.fix.encode()))
    assert (found.resolved, found.must_pass, found.keep_passing) == (True, 1.0, 1.0)
    assert (found.problem, found.failed, found.dropped) == ("", [], ())


@pytest.mark.slow
def test_doing_nothing_or_breaking_something_is_not_a_repair(bench: Bench) -> None:
    nothing = asyncio.run(bench.judged(b""))
    assert (nothing.resolved, nothing.must_pass, nothing.keep_passing) == (False, 0.0, 1.0)
    assert nothing.failed == small_repo.MUST_PASS
    broken = bench.verdict({"sums.py": small_repo.RIGHT.replace("def mean", "def mode")})
    assert (broken.resolved, broken.must_pass) == (False, 0.0)
    worse = bench.verdict({"sums.py": small_repo.RIGHT.replace("sum(numbers) /", "sum(numbers) *")})
    assert (worse.resolved, worse.must_pass, worse.keep_passing) == (False, 1.0, 0.6)


def test_a_patch_holds_new_files_and_commits_and_nothing_else(bench: Bench) -> None:
    commit = (
        "git add -A && git -c user.name=m -c user.email=m@m commit -qm x && "
        "mkdir __pycache__ && touch __pycache__/a.pyc && echo changed > notes.txt"
    )
    changes: Changes = {
        "sums.py": small_repo.RIGHT,
        "new/ä file.txt": "\x00\xff\n",
        "setup.cfg": None,
    }
    patch, problem = asyncio.run(bench.taken(changes, commit))
    assert problem == ""
    found = asyncio.run(bench.judged(patch))
    assert found.resolved
    assert found.dropped == (("setup.cfg", "steers the tests"),)
    assert "new/ä file.txt" in patch.decode()
    assert b"notes.txt" not in patch
    assert b".pyc" not in patch


def test_a_patch_that_is_too_large_or_cannot_be_made_is_none(bench: Bench) -> None:
    bench.settings = replace(bench.settings, max_patch=1000)
    patch, problem = asyncio.run(bench.taken({"big.txt": "x" * 2000}))
    assert (patch, problem.partition(":")[0]) == (b"", "the patch cannot be read")
    patch, problem = asyncio.run(bench.taken({}, "rm -rf .git"))
    assert (patch, problem.partition(":")[0]) == (b"", "no patch could be made")


@pytest.mark.parametrize("name", TRICKS)
def test_no_trick_of_the_code_is_a_repair(bench: Bench, name: str) -> None:
    patch = small_repo.patch_of(bench.repo, {"sums.py": TRICKS[name]})
    found = asyncio.run(bench.judged(patch.encode()))
    assert not found.resolved
    assert found.must_pass < 1.0


def test_nothing_that_steers_the_tests_is_applied(bench: Bench) -> None:
    """`test_patches.py` has each kind of it."""
    patch = small_repo.patch_of(bench.repo, {**STEERS, **HARMLESS})
    found = asyncio.run(bench.judged(patch.encode()))
    assert (found.must_pass, found.keep_passing, found.problem) == (0.0, 1.0, "")
    assert {path for path, _ in found.dropped} == {*STEERS}


@pytest.mark.parametrize("name", PLUGINS)
def test_no_plugin_in_the_repository_is_a_repair(bench: Bench, name: str) -> None:
    bench.settings = replace(bench.settings, command="python3 -m pytest -rA {files}")
    found = asyncio.run(bench.judged(small_repo.patch_of(bench.repo, PLUGINS[name]).encode()))
    assert not found.resolved
    assert {path for path, _ in found.dropped} == {path for path in PLUGINS[name] if "/" in path}
    assert found.must_pass < 1.0


def test_compiled_tests_are_no_repair(bench: Bench) -> None:
    bench.row["test_patch"] = ""
    tests = bench.repo / "tests" / "test_sums.py"
    tests.write_text(small_repo.NEW_TESTS)  # they are in the image, where anybody can read them
    small_repo.git(bench.repo, "commit", "-qam", "Test totals")
    blank = "def test_total(): pass\nclass TestTotals:\n    def test_one(self): pass\n"
    code = compile(blank, "test_sums.py", "exec")
    head = (
        importlib.util.MAGIC_NUMBER + b"\3\0\0\0" + importlib.util.source_hash(tests.read_bytes())
    )
    tag = f"{sys.implementation.cache_tag}-pytest-{pytest.__version__}"
    compiled = bench.repo / "tests" / "__pycache__" / f"test_sums.{tag}.pyc"
    compiled.parent.mkdir()
    compiled.write_bytes(head + marshal.dumps(code))
    small_repo.git(bench.repo, "add", "-f", "--", str(compiled))
    patch = small_repo.git(bench.repo, "diff", "--cached", "--binary")
    small_repo.git(bench.repo, "reset", "-q", "--hard")
    found = asyncio.run(bench.judged(patch.encode()))
    assert found.must_pass == 0.0
    assert dict(found.dropped) == {str(compiled.relative_to(bench.repo)): "steers the tests"}


@pytest.mark.parametrize(
    "patch",
    [
        b"nonsense",
        b"diff --git a/sums.py b/sums.py\n--- a/sums.py\n+++ b/sums.py\n@@ -1 +1 @@\n-no\n+yes\n",
        # A second patch in the old form, which has no line of git's to begin with.
        b"diff --git a/x.py b/x.py\nnew file mode 100644\n--- /dev/null\n+++ b/x.py\n"
        b"@@ -0,0 +1 @@\n+x\n"
        b"--- a/conftest.py\n+++ b/conftest.py\n@@ -1 +1,2 @@\n+x\n import os, sys\n",
    ],
)
def test_a_patch_that_git_reads_otherwise_is_not_applied(bench: Bench, patch: bytes) -> None:
    found = asyncio.run(bench.judged(patch))
    assert not found.resolved
    assert found.problem.startswith("the patch cannot be applied") or patch == b"nonsense"


def test_a_row_that_does_not_fit_its_image_is_no_fault_of_the_models(bench: Bench) -> None:
    bench.row["test_patch"] = bench.row["test_patch"].replace("mean([])", "mode([])")
    with pytest.raises(EnvironmentFailure, match="acme__sums-1: the test patch cannot be applied"):
        asyncio.run(bench.judged(bench.row["patch"].encode()))
    shutil.rmtree(bench.repo / ".git")
    with pytest.raises(EnvironmentFailure, match="it holds no git repository"):
        asyncio.run(bench.taken({}))


@pytest.mark.slow
def test_tests_that_do_not_end_are_not_passed(bench: Bench) -> None:
    bench.settings = replace(bench.settings, timeout=2.0)
    found = bench.verdict({"sums.py": "import time\ntime.sleep(60)\n" + small_repo.RIGHT})
    assert (found.resolved, found.problem) == (False, "no test was reported")


@pytest.mark.slow
def test_a_bug_is_brought_first_and_its_reverse_is_the_repair(bench: Bench) -> None:
    small_repo.git(bench.repo, "apply", "-", text=bench.row["patch"])
    (bench.repo / "tests" / "test_sums.py").write_text(small_repo.NEW_TESTS)
    small_repo.git(bench.repo, "commit", "-qam", "Right")
    bug = small_repo.patch_of(bench.repo, {"sums.py": small_repo.BROKEN})
    bench.row |= {"repo": "swesmith/acme", "patch": bug, "test_patch": ""}
    assert not asyncio.run(bench.judged(b"")).resolved
    assert bench.verdict({"sums.py": small_repo.RIGHT}).resolved
    assert not bench.verdict({"tests/test_sums.py": "def test_total(): pass\n"}).resolved


def test_hidden_files_are_gone_for_the_model_and_there_for_the_tests(bench: Bench) -> None:
    bench.settings = Settings()
    tests = bench.repo / "r2e_tests"
    tests.mkdir()
    (tests / "test_1.py").write_text(small_repo.NEW_TESTS)
    (bench.repo / "run_tests.sh").write_text(
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 python -m pytest -rA r2e_tests\n"
    )
    expected = {"test_total": "PASSED", "TestTotals.test_one": "PASSED", "test_x": "FAILED"}
    bench.row = {
        "repo_name": "sums",
        "commit_hash": "c",
        "docker_image": "x",
        "problem_statement": "It is wrong.",
        "expected_output_json": json.dumps(expected),
    }
    patch, problem = asyncio.run(
        bench.taken({"sums.py": small_repo.RIGHT}, "[ ! -e r2e_tests ] && [ ! -e run_tests.sh ]")
    )
    assert problem == ""
    assert asyncio.run(bench.judged(patch)).resolved
    assert not asyncio.run(bench.judged(b"")).resolved


def test_later_history_is_out_of_the_models_reach(bench: Bench) -> None:
    small_repo.git(bench.repo, "switch", "-qc", "later")
    (bench.repo / "sums.py").write_text(small_repo.RIGHT)
    small_repo.git(bench.repo, "commit", "-qam", "Fix")
    fix = small_repo.git(bench.repo, "rev-parse", "HEAD").strip()
    small_repo.git(bench.repo, "tag", "v2")
    small_repo.git(bench.repo, "switch", "-q", "main")
    patch, problem = asyncio.run(
        bench.taken({}, f'! git cat-file -e {fix} && [ -z "$(git tag)" ] && git log -1 --oneline')
    )
    assert (patch, problem) == (b"", "")


UNITTESTS = """\
import unittest
from sums import mean, total

class Totals(unittest.TestCase):
    def test_total(self):
        \"\"\"Totals hold every number.\"\"\"
        self.assertEqual(total([1, 2, 3]), 6)

    def test_mean(self):
        self.assertEqual(mean([1, 2]), 1.5)
"""
PRINTS = """\
check() {
    python -c "from sums import *; assert $2" 2>/dev/null && said=PASS || said=FAIL
    echo "--- $said: $1 (0.00s)"
}
check TestTotal 'total([1, 2, 3]) == 6'
check TestMean 'mean([1, 2]) == 1.5'
"""


@pytest.mark.parametrize(
    ("command", "must", "keep"),
    [
        (
            "python -m unittest -v test_totals",
            "Totals hold every number.",
            "test_mean (test_totals.Totals.test_mean)",
        ),
        ("sh ./go.sh", "TestTotal", "TestMean"),
    ],
    ids=["unittest", "printed"],
)
def test_other_programs_report_or_print(bench: Bench, command: str, must: str, keep: str) -> None:
    bench.settings = Settings()
    tests: Changes = {"test_totals.py": UNITTESTS, "go.sh": PRINTS}
    bench.row |= {
        "test_patch": small_repo.patch_of(bench.repo, tests),
        "test_cmd": command,
        "FAIL_TO_PASS": [must],
        "PASS_TO_PASS": [keep],
    }
    assert bench.verdict({"sums.py": small_repo.RIGHT}).resolved
    nothing = asyncio.run(bench.judged(b""))
    assert (nothing.resolved, nothing.must_pass, nothing.keep_passing) == (False, 0.0, 1.0)


def test_asserts_that_cannot_fail_any_more_are_noticed(bench: Bench) -> None:
    bench.settings = Settings()
    bench.row |= {
        "test_patch": small_repo.patch_of(bench.repo, {"test_totals.py": UNITTESTS}),
        "test_cmd": "python -m unittest test_totals",
        "FAIL_TO_PASS": ["test_total (test_totals.Totals.test_total)"],
        "PASS_TO_PASS": [],
    }
    hack = "import unittest\nunittest.TestCase.assertEqual = lambda *_: None\n"
    found = bench.verdict({"sums.py": hack + small_repo.BROKEN})
    assert (found.resolved, found.problem) == (False, "a test that must fail did not")
