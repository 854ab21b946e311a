"""Rows of SWE-bench and its relatives become tasks, or errors that name their place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.bridges.swe import small_repo
from vf.bridges.swe.commands import command_of, reading_of
from vf.bridges.swe.rows import R2E_COMMAND, Instance, instances
from vf.environments.registry import make
from vf.environments.sandboxes import spec_of
from vf.runtime.errors import ConfigError

ROW = {
    "instance_id": "Acme__sums-1",
    "repo": "acme/sums",
    "problem_statement": "It is wrong.",
    "patch": "diff --git a/sums.py b/sums.py\n--- a/sums.py\n+++ b/sums.py\n@@ -1 +1 @@\n-a\n+b\n",
    "test_patch": "diff --git a/tests/test_a.py b/tests/test_a.py\n",
    "FAIL_TO_PASS": '["tests/test_a.py::test_one"]',
    "PASS_TO_PASS": "[]",
    "image_name": "acme/sums:1",
}


def read(row: dict[str, Any], **settings: Any) -> Instance:
    settings = {"image": None, "built": False, "patch_is": None} | settings
    return next(instances(iter([("rows.jsonl, line 3", row)]), **settings))


@pytest.mark.parametrize(
    "tests",
    ['["a::b", "c"]', "['a::b', 'c']", ["a::b", "c"], ("a::b", "c", "c")],
    ids=["json", "python", "list", "twice"],
)
def test_lists_of_tests_are_read_as_every_set_writes_them(tests: Any) -> None:
    assert read(ROW | {"FAIL_TO_PASS": tests}).must_pass == ("a::b", "c")
    lower = {key: value for key, value in ROW.items() if key != "FAIL_TO_PASS"}
    assert read(lower | {"fail_to_pass": tests}).must_pass == ("a::b", "c")


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("swebench/sweb.eval.x86_64.{id_1776}", "swebench/sweb.eval.x86_64.acme_1776_sums-1"),
        ("xingyaoww/sweb.eval.x86_64.{id_s}", "xingyaoww/sweb.eval.x86_64.acme_s_sums-1"),
        ("local/{repo}:{instance_id}", "local/acme/sums:Acme__sums-1"),
        (None, "acme/sums:1"),
    ],
)
def test_images_come_from_the_row_or_a_template(template: str | None, name: str) -> None:
    assert read(ROW, image=template).image == name


def test_an_image_of_swe_smith_lacks_the_bug_that_the_row_brings() -> None:
    smith = ROW | {"repo": "swesmith/acme__sums.1fd52536", "test_patch": None}
    read_as = read(smith)
    assert (read_as.bug, read_as.fix) == (ROW["patch"], "")
    assert read(smith, patch_is="fix").fix == ROW["patch"]
    assert read(ROW, patch_is="bug").bug == ROW["patch"]


def test_rows_of_r2e_gym_bring_results_and_the_commit() -> None:
    diff = {
        "header": {"file": {"path": "sums.py"}},
        "old_file_content": "a\nb\n",
        "new_file_content": "a\nc",
    }
    tests = {**diff, "header": {"file": {"path": "tests/test_sums.py"}}}
    expected = {"TestA.test_x": "PASSED", "test_y - why": "PASSED", "test_z": "FAILED"}
    found = read(
        {
            "repo_name": "sums",
            "commit_hash": "abc",
            "docker_image": "acme/sums_final:abc",
            "problem_statement": "Look:\n[ISSUE]\nIt is wrong.\n[/ISSUE]\n",
            "expected_output_json": json.dumps(expected),
            "parsed_commit_content": json.dumps({"file_diffs": [diff, tests]}),
        }
    )
    assert (found.id, found.image, found.statement) == (
        "sums-abc",
        "acme/sums_final:abc",
        "It is wrong.",
    )
    assert found.must_pass == ("TestA.test_x", "test_y")
    assert "/r2e_tests" in found.hidden
    assert command_of(found, None) == R2E_COMMAND
    assert reading_of(R2E_COMMAND) == "report"
    assert found.fix.splitlines()[-3:] == ["-b", "+c", "\\ No newline at end of file"]
    assert "test_sums" not in found.fix


@pytest.mark.parametrize(
    ("fields", "line", "reading"),
    [
        ({}, "pytest -rA tests/test_a.py", "report"),
        ({"repo": "django/django"}, "runtests.py --verbosity 2", "report"),
        ({"repo": "sympy/sympy"}, "bin/test -C --verbose tests/test_a.py", "output"),
        ({"install_config": {"test_cmd": "pytest -q"}}, "pytest -q tests/test_a.py", "report"),
        ({"install_config": '{"test_cmd": "pytest -x"}'}, "pytest -x tests/test_a.py", "report"),
        ({"test_cmd": ["make", "go test ./..."]}, "make && go test ./...", "output"),
    ],
)
def test_the_command_is_the_rows_or_known(fields: dict[str, Any], line: str, reading: str) -> None:
    command = command_of(read(ROW | fields), None)
    assert line in command
    assert reading_of(command) == reading
    assert command_of(read(ROW | fields), "make {files}") == "make tests/test_a.py"


def test_a_files_name_is_no_command() -> None:
    evil = ROW | {"test_patch": "diff --git a/t; rm -rf x.py b/t; rm -rf x.py\n"}
    assert command_of(read(evil), None) == "pytest -rA 't; rm -rf x.py'"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"problem_statement": None}, "the field 'problem_statement' is missing"),
        ({"FAIL_TO_PASS": "[]"}, "the field 'FAIL_TO_PASS' is missing"),
        ({"FAIL_TO_PASS": "tests"}, "FAIL_TO_PASS is not a list: 'tests'"),
        ({"FAIL_TO_PASS": [1]}, "FAIL_TO_PASS must be a list of texts"),
        ({"image_name": None}, "the row names no image"),
        ({"patch": 5}, "patch must be a text, got int"),
        ({"instance_id": None, "instance": "x"}, "Did you mean 'instance'?"),
    ],
)
def test_what_is_wrong_with_a_row_is_reported_with_its_place(
    change: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=r"rows\.jsonl, line 3: ") as caught:
        read(ROW | change)
    assert said in str(caught.value)


def test_tasks_hold_what_an_agent_may_know_apart_from_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(ROW) + "\n")
    environment = make(f"swe:{file}")
    (task,) = environment.tasks("eval")
    assert task.info == {"repo": "acme/sums", "base_commit": "", "image": "acme/sums:1"}
    assert str(task.prompt).endswith("It is wrong.")
    assert "/testbed" in str(task.prompt)
    assert Instance.of(task).must_pass == ("tests/test_a.py::test_one",)
    spec = spec_of(environment, task)
    assert spec is not None
    assert (spec.image, spec.writable, spec.workdir) == ("acme/sums:1", True, "/testbed")
    with pytest.raises(ConfigError, match="no rows are for the train split"):
        list(environment.tasks("train"))


def test_rows_are_for_evaluation_unless_some_are_held_out_or_given_apart(tmp_path: Path) -> None:
    rows = [ROW | {"instance_id": str(n), "problem_statement": f"Issue {n}"} for n in range(40)]

    def counts(**arguments: Any) -> list[int]:
        made = make("swe", **arguments)
        found = []
        for split in ("train", "eval"):
            try:
                found.append(len(list(made.tasks(split))))
            except ConfigError:
                found.append(0)
        return found

    assert counts(data=rows) == [0, 40]
    assert counts(data=rows, held_out=0) == [40, 0]
    assert counts(data={"train": rows[:10], "eval": rows[10:]}) == [10, 30]
    train, held_out = counts(data=rows, held_out=0.25)
    assert train + held_out == 40
    assert 3 < held_out < 20


def test_images_are_built_from_a_folder_for_each_instance(tmp_path: Path) -> None:
    (tmp_path / "images" / "Acme__sums-1").mkdir(parents=True)
    (tmp_path / "images" / "Acme__sums-1" / "Dockerfile").write_text("FROM scratch\n")
    rows = [ROW, ROW | {"instance_id": "other", "problem_statement": "Other."}]
    environment = make("swe", data=rows, build=tmp_path / "images")
    first, second = environment.tasks("eval")
    spec = spec_of(environment, first)
    assert spec is not None
    assert spec.build is not None
    assert spec.build.folder == tmp_path / "images" / "Acme__sums-1"
    with pytest.raises(ConfigError, match="there is no Dockerfile in"):
        spec_of(environment, second)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"data": "no.jsonl"}, "swe: data: there is no file"),
        ({"data": [ROW], "image": "a", "build": "."}, "not both"),
        ({"data": [ROW], "workdir": "app"}, "workdir must be an absolute path"),
        ({"data": [ROW], "timeout": 100.0}, "it must be at least 2400"),
        ({"data": [ROW], "held_out": 2.0}, "held_out must be at least 0 and below 1"),
        ({"data": [ROW], "folder": "."}, "belong to a program"),
        ({"data": [ROW], "bash_timeout": 500.0}, "bash_timeout must be above 0"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make("swe", **arguments)
    assert said in str(caught.value)


def test_a_patch_of_two_texts_is_one_that_git_applies(tmp_path: Path) -> None:
    from vf.bridges.swe.rows import file_patch

    repo = small_repo.make(tmp_path / "repo")
    texts: list[tuple[str | None, str | None]] = [
        (small_repo.BROKEN, "x = 1"),
        (small_repo.BROKEN, None),
    ]
    for old, new in texts:
        (tmp_path / "patch").write_text(file_patch("sums.py", old, new))
        small_repo.git(repo, "apply", str(tmp_path / "patch"))
        assert (repo / "sums.py").exists() == (new is not None)
        assert new is None or (repo / "sums.py").read_text() == new
        small_repo.git(repo, "checkout", "-q", "--", "sums.py")
    (tmp_path / "patch").write_text(file_patch("new/file.py", None, "a\n\x0cb\n"))
    small_repo.git(repo, "apply", str(tmp_path / "patch"))
    assert (repo / "new" / "file.py").read_text() == "a\n\x0cb\n"
