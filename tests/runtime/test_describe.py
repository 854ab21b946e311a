"""Descriptions change when what is described does, and only then."""

from __future__ import annotations

import functools
import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from vf.runtime.describe import Description

Load = Callable[[str], ModuleType]

SCORERS = '''
import functools
import re

WORDS = {"yes", "no", "maybe", "never", "always"}
NUMBER = re.compile("[0-9]+")


def clean(text):
    return text.strip()


def exact(trace):
    """Compare."""
    return float(clean(trace) in WORDS and NUMBER.match(trace) is None)


def above(limit):
    def passes(trace):
        return float(len(trace) > limit)

    return passes


class Judge:
    def __init__(self, weight, api_key):
        self.weight, self.api_key = weight, api_key
        self.words = frozenset(WORDS)

    def __call__(self, trace):
        return self.weight * exact(trace)


three, five = above(3), above(5)
first, second = lambda t: t[0], lambda t: t[1]
part = functools.partial(above, limit=2)
judge = Judge(0.5, "sk-1234")
'''
EVERY = ("exact", "three", "first", "part", "judge")


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Import a module of this text, in place of the last one."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def loaded(text: str) -> ModuleType:
        (tmp_path / "scorers_of_test.py").write_text(text)
        sys.modules.pop("scorers_of_test", None)
        importlib.invalidate_caches()
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        return importlib.import_module("scorers_of_test")

    return loaded


def described(value: Any) -> str:
    """Return a value's description with its code, as text."""

    def ours(module: str) -> bool:
        return module in ("scorers_of_test", "__main__")

    description = Description(ours, ours)
    found = description.of(value)
    return json.dumps([found, description.code], sort_keys=True)


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("is None)", "is None) / 2", "exact"),
        ("text.strip()", "text.lower()", "exact"),  # a function that it calls
        ('"always"', '"often"', "exact"),  # a constant that it reads
        ('"[0-9]+"', '"[0-9]*"', "exact"),
        ("above(3)", "above(4)", "three"),  # what a closure holds
        ("> limit", ">= limit", "three"),
        ("t[0]", "t[2]", "first"),
        ("limit=2", "limit=1", "part"),
        ("Judge(0.5", "Judge(0.7", "judge"),
        ("self.weight *", "1 -", "judge"),
        ("text.strip()", "text.lower()", "judge"),
    ],
)
def test_a_change_of_what_counts_is_one_of_the_description(
    load: Load, old: str, new: str, name: str
) -> None:
    before = {each: described(getattr(load(SCORERS), each)) for each in EVERY}
    assert old in SCORERS
    after = {each: described(getattr(load(SCORERS.replace(old, new, 1)), each)) for each in EVERY}
    assert before[name] != after[name]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""Compare."""', '"""Compare two texts."""'),
        ("return text.strip()", "# without blanks\n    return (text.strip(\n    ))"),
        ("def clean(text)", "\n\n\ndef clean(text: str) -> str"),
        ('{"yes", "no",', '{"no", "yes",'),
        ('"sk-1234"', '"sk-5678"'),  # a secret is no setting
    ],
)
def test_what_changes_nothing_is_not_a_difference(load: Load, old: str, new: str) -> None:
    before = {each: described(getattr(load(SCORERS), each)) for each in EVERY}
    assert old in SCORERS
    after = {each: described(getattr(load(SCORERS.replace(old, new)), each)) for each in EVERY}
    assert before == after


def test_functions_of_one_source_are_distinguished(load: Load) -> None:
    module = load(SCORERS)
    assert described(module.three) != described(module.five)
    assert described(module.first) != described(module.second)  # two lambdas in a line


def test_a_secret_is_not_written(load: Load) -> None:
    assert "sk-1234" not in described(load(SCORERS).judge)


def test_a_function_without_source_is_described_by_what_it_does() -> None:
    def made(body: str) -> Any:
        names: dict[str, Any] = {"__name__": "scorers_of_test"}
        exec(f"def score(trace):\n    return {body}", names)
        return names["score"]

    assert described(made("trace + 1")) == described(made("trace + 1"))
    assert described(made("trace + 1")) != described(made("trace + 2"))
    assert described(made("trace.a")) != described(made("trace.b"))


@pytest.mark.parametrize("value", [len, functools.partial(print, end=""), iter([]), object()])
def test_what_has_no_source_at_all_is_described_without_its_address(value: Any) -> None:
    assert f"{id(value):x}" not in described(value)
    assert described(value) == described(value)


def test_what_holds_itself_is_described(load: Load) -> None:
    ring: list[Any] = [1]
    ring.append(ring)
    described(ring)
    module = load("def again(n):\n    return n and again(n - 1)\n")
    assert "again(n - 1)" in described(module.again)


def test_a_description_is_the_same_in_another_process(tmp_path: Path) -> None:
    """Where sets have another order, and objects other addresses."""
    (tmp_path / "scorers_of_test.py").write_text(SCORERS)
    program = (
        "import json, scorers_of_test as s; from vf.runtime.describe import Description;"
        "d = Description(lambda m: m == 'scorers_of_test', lambda m: m == 'scorers_of_test');"
        f"print(json.dumps([[d.of(getattr(s, n)) for n in {EVERY!r}], d.code]))"
    )

    def said(seed: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    assert said("1") == said("2")
