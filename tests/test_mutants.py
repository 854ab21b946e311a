"""Mutants: what is changed, and which changes the tests of a small repository notice."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import mutants
import pytest

CODE = '''
"""A module."""

LIMIT = 3


class Shop:
    def price(self, count: int = 1) -> int:
        """Return the price."""
        if count > 2 and count != 7:
            print(f"{1 + 1}")
            return count * 3
        return 0


def unused(x: int) -> int:
    return x + 1
'''
TESTS = """
from runtime.shop import Shop

def test_price():
    assert Shop().price(5) == 15
    assert Shop().price(1) == 0
"""


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of one room."""
    for path, text in (("runtime/shop.py", CODE), ("tests/runtime/test_shop.py", TESTS)):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(text)
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    return tmp_path


def test_each_expression_of_a_function_is_changed_as_it_stands(tree: Path) -> None:
    found = mutants.mutants_of(tree, "runtime/shop.py")
    changes = {(m.name.rpartition(".")[2], m.source, m.replacement) for m in found}
    condition = "count > 2 and count != 7"
    assert changes == {
        ("price", condition, f"not ({condition})"),
        ("price", condition, "count > 2 or count != 7"),
        ("price", "count > 2", "count >= 2"),
        ("price", "count != 7", "count == 7"),
        ("price", "2", "3"),
        ("price", "7", "8"),
        ("price", 'print(f"{1 + 1}")', "None"),
        ("price", "count * 3", "None"),
        ("price", "count * 3", "count + 3"),
        ("price", "3", "4"),
        ("price", "0", "1"),
        ("unused", "x + 1", "None"),
        ("unused", "x + 1", "x - 1"),
        ("unused", "1", "2"),
    }
    text = CODE.encode()
    assert all(text[start:end].decode() == m.source for m, (start, end) in found.items())


def test_a_draw_depends_on_the_seed_alone(tree: Path) -> None:
    draws = [mutants.draw(tree, 5, seed, ["runtime"]) for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]
    assert len(set(draws[0])) == 5


@pytest.mark.slow
def test_what_the_tests_notice_is_killed(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tree / "mutants.md"
    command = ["mutants.py", "--under", "runtime", "--count", "14", "--workers", "1"]
    monkeypatch.setattr(sys, "argv", [*command, "--out", str(out)])
    mutants.main()
    rows = json.loads(out.with_suffix(".json").read_text())
    states = {(r["mutant"]["source"], r["mutant"]["replacement"]): r["state"] for r in rows}
    assert states["count * 3", "count + 3"] == "killed"
    assert states["0", "1"] == "killed"
    assert states["count > 2", "count >= 2"] == "survived"
    assert states["x + 1", "x - 1"] == "unreached"
    # The same mutants, wherever their lines are now; those whose code has changed are left out.
    moved = CODE.replace('"""A module."""', "import os").replace("x + 1", "x + 2")
    (tree / "runtime/shop.py").write_text(moved.replace("\nLIMIT", "\n\nLIMIT"))
    (tree / "tests/runtime/test_shop.py").write_text(TESTS + "    assert Shop().price(2) == 0\n")
    source = tree / "before.json"
    source.write_text(out.with_suffix(".json").read_text())
    monkeypatch.setattr(sys, "argv", [*command, "--from", str(source), "--out", str(out)])
    mutants.main()
    rows = json.loads(out.with_suffix(".json").read_text())
    states = {(r["mutant"]["source"], r["mutant"]["replacement"]): r["state"] for r in rows}
    assert states["count > 2", "count >= 2"] == "killed"
    assert states["x + 1", "x - 1"] == "gone"
    # The constants 2 and 7, and the print, are seen by no test.
    assert "| runtime | 11 | 8 | 0 | 3 | 0 | 73% |" in out.read_text()
