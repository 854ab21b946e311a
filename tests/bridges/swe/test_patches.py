"""Of a patch that nobody vouches for, only what a repair may change is kept."""

from __future__ import annotations

import pytest

from vf.bridges.swe.patches import keep, split, touched


def part(path: str, *, head: str = "", body: str = "@@ -1 +1 @@\n-a\n+b\n") -> str:
    return f"diff --git a/{path} b/{path}\n{head}--- a/{path}\n+++ b/{path}\n{body}"


def new(path: str, text: str = "x") -> str:
    head = f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n"
    return f"{head}+++ b/{path}\n@@ -0,0 +1 @@\n+{text}\n"


def test_a_patch_is_cut_into_its_files() -> None:
    one, two = part("a.py", body="@@ -1 +1 @@\n- diff --git a/x b/x\n+b\r\n"), new("b/c d.txt")
    parts = list(split(("From: somebody\n" + one + two).encode()))
    assert [(each.path, each.new, each.fault) for each in parts] == [
        ("a.py", False, ""),
        ("b/c d.txt", True, ""),
    ]
    assert b"".join(each.data for each in parts) == (one + two).encode()
    assert touched(one + two) == ["a.py", "b/c d.txt"]
    assert touched("") == []


@pytest.mark.parametrize(
    ("patch", "reason"),
    [
        (part("tests/test_a.py"), "a file of the tests"),
        (new("tests"), "a file of the tests"),
        (part("pkg/conftest.py"), "steers the tests"),
        (new("sitecustomize.py"), "steers the tests"),
        (part("setup.cfg"), "steers the tests"),
        (new("x.pth"), "steers the tests"),
        (new("tests/__pycache__/test_a.cpython-311-pytest-9.2.0.pyc"), "steers the tests"),
        (new("src/x-1.0.dist-info/entry_points.txt"), "steers the tests"),
        (new("X.EGG-INFO"), "steers the tests"),
        (new("pytest.py"), "takes the name of a module that runs the tests"),
        (new("src/json/__init__.py"), "takes the name of a module that runs the tests"),
        (new("_pytest/runner.py"), "takes the name of a module that runs the tests"),
        (new(".git/hooks/post-checkout"), "part of git's own folder"),
        (new("a/.GIT/config"), "part of git's own folder"),
        (new("../x.py"), "leads out of the repository"),
        (new("/etc/x"), "leads out of the repository"),
        (new("a/../../x"), "leads out of the repository"),
        (part("a.py", head="rename from a.py\nrename to conftest.py\n"), "renames"),
        ("diff --git a/a.py b/conftest.py\nrename from a.py\n", "renames"),
        (part("a", head="new file mode 120000\n"), "a link"),
        (part("a", head="index 123..456 160000\n"), "a link"),
        ('diff --git "a/con\\146test.py" "b/con\\146test.py"\n', "a name with quotes"),
        ("diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/conftest.py\n", "names two files"),
        ("diff --git a/a.py b/a.py\n--- a.py\n+++ conftest.py\n", "a name with quotes"),
        ("diff --git nothing\n", "no file"),
    ],
)
def test_what_is_no_repair_is_left_out(patch: str, reason: str) -> None:
    right = part("src/a.py")
    kept = keep((patch + right).encode(), tests=["tests/test_a.py"])
    assert kept.data == right.encode()
    assert kept.files == ("src/a.py",)
    assert [why for _, why in kept.dropped] == [reason]


@pytest.mark.parametrize("path", ["setup.cfg", "pkg/conftest.py"])
def test_what_the_known_repair_changes_may_be_changed(path: str) -> None:
    assert keep(part(path).encode(), tests=[], allowed=[path]).files == (path,)
    assert keep(new("json.py").encode(), tests=[], allowed=["json.py"]).files == ("json.py",)


@pytest.mark.parametrize("path", ["pkg/json.py", "json/data.txt/x", "docs/pytest.rst", "select"])
def test_names_that_no_import_finds_first_are_kept(path: str) -> None:
    changed = part(path) if path == "json/data.txt/x" else new(path)
    assert keep(changed.encode(), tests=[]).files == (path,)


def test_a_module_that_is_there_already_may_be_repaired() -> None:
    assert keep(part("src/_pytest/runner.py").encode(), tests=[]).files == (
        "src/_pytest/runner.py",
    )
