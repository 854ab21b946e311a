"""The check of prose finds what it should, in what people read and nowhere else."""

from __future__ import annotations

import subprocess
from pathlib import Path

import check_prose
import pytest

PYTHON = '''
"""A run goes
on after a kill."""

go_on = "go on"  # is told
MESSAGES = {"anew": f"start {go_on} " "any" "way, once"
    " more"}
'''
MARKDOWN = """
# Resuming

A run goes on, `done over`.

```
a run goes on
```

    indented, anew

[of ours](https://example.com/anew) is
told.
"""
JAVASCRIPT = """
// begun anew
const mend = 1, text = "done over";
"""


@pytest.mark.parametrize(
    ("path", "text", "found"),
    [
        ("a.md", MARKDOWN, [(4, "goes on"), (12, "of ours"), (12, "is told")]),
        ("a.py", PYTHON, [(2, "goes on"), (5, "go on"), (5, "is told"), (6, "once more")]),
        ("tests/a.py", PYTHON, [(2, "goes on"), (5, "is told")]),  # not a test's data
        ("a.js", JAVASCRIPT, [(2, "anew"), (3, "done over")]),
        ("a.py", "mend = anew\n", []),
        ("tests/a.py", "def test_a_run_goes_on() -> None: ...", [(1, "goes on")]),
        ("a.md", "It Goes On and is told to; goes on what.", [(1, "goes on")]),
    ],
)
def test_phrases_are_found(
    path: str, text: str, found: list[tuple[int, str]], tmp_path: Path
) -> None:
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).write_text(text, encoding="utf-8")
    findings = check_prose.check(tmp_path, [path])
    assert [(each.line, each.phrase) for each in findings] == found
    assert all(str(each).startswith(f"{path}:{each.line}: ") for each in findings)


def test_only_prose_of_the_repository_is_read(tmp_path: Path) -> None:
    for name in ("a.md", "a.py", "a.js", "a.toml", "docs/terms.md", "ignored.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("anew")
    (tmp_path / ".gitignore").write_text("ignored.md\n")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    assert sorted(check_prose.files(tmp_path)) == ["a.js", "a.md", "a.py"]


CLUSTER = '''
class Lease:
    """A machine.

    Args:
        host: Address of the machine.
        role: What it does.
        wait: Whether to wait
            Of course.

    Raises:
        ConfigError: If there is none.
        ValueError: It is taken.
    """

    def place(self, each: int) -> None:
        self._said = found = [known for known in (each, self.place)]
'''


def test_names_and_sections_are_checked_in_the_rooms_that_keep_to_them(tmp_path: Path) -> None:
    paths = ["cluster/a.py", "cluster/voids.py", "tests/cluster/a.py"]
    for path in paths:
        (tmp_path / path).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / path).write_text("" if "voids" in path else CLUSTER)
    assert [(each.path, each.line, each.phrase) for each in check_prose.check(tmp_path, paths)] == [
        ("cluster/a.py", 7, "role: What ..."),
        ("cluster/a.py", 13, "ValueError: It ..."),
        ("cluster/a.py", 16, "each"),
        ("cluster/a.py", 17, "_said"),
        ("cluster/a.py", 17, "found"),
        ("cluster/a.py", 17, "known"),
        ("cluster/voids.py", 1, "voids"),
    ]
