"""Every edit that can change a result is one of the fingerprint, wherever it is made."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pydantic_core
import pytest

from vf.environments.registry import make
from vf.evaluation.fingerprint import describe_environment

ENVIRONMENT = """
import functools
import vf
{above}

class E(vf.Environment):
    rubric = vf.Rubric(outcome=score)

    def tasks(self, split):
        yield vf.Task("a", "q", "1")

{within}

{below}
"""
SCORE = "def score(trace): return 0.0\n"
K = "K = 0.25\ndef score(trace): return K\n"


def source(above: str = SCORE, within: str = "", below: str = "") -> str:
    indented = "".join(f"    {line}\n" for line in within.splitlines())
    return ENVIRONMENT.format(above=above, within=indented, below=below)


LOGGED = """
import functools

def logged(fn):
    @functools.wraps(fn)
    def inner(*args):
        return fn(*args)
    return inner
"""
# By name: the files, the environment, and the value in one of them that becomes another.
EDITS: dict[str, tuple[dict[str, str], str, str]] = {
    "a folder without __init__.py": (
        {"mine.py": source("from fp_helpers.check import score"), "fp_helpers/check.py": K},
        "mine.py",
        "0.25",
    ),
    "a module that is imported late, and what it imports": (
        {
            "mine.py": source(within="def reset(self, task):\n    import fp_late\n    return 'x'"),
            "fp_late.py": "from fp_deep import K\n",
            "fp_deep.py": "K = 0.25\n",
        },
        "mine.py",
        "0.25",
    ),
    "a module of a package that is imported late": (
        {
            "fp_package/__init__.py": "",
            "fp_package/mine.py": source(
                within="def reset(self, task):\n    from . import late\n    return 'x'"
            ),
            "fp_package/late.py": K,
        },
        "fp_package/mine.py",
        "0.25",
    ),
    "a decorated method": (
        {
            "mine.py": source(
                "from fp_lib import logged\n" + SCORE,
                "@logged\ndef reset(self, task): return '0.25'",
            ),
            "fp_lib.py": LOGGED,
        },
        "mine.py",
        "0.25",
    ),
    "what a decorator of a helper was given": (
        {
            "mine.py": source(
                "def times(k):\n    def deco(fn):\n        return lambda: k * fn()\n"
                "    return deco\n@times(0.25)\ndef one(): return 1.0\n"
                "def score(trace): return one()\n"
            )
        },
        "mine.py",
        "0.25",
    ),
    "a setter": (
        {
            "mine.py": source(
                within="@property\ndef k(self): return 1\n@k.setter\ndef k(self, v): self.l = 0.25"
            )
        },
        "mine.py",
        "0.25",
    ),
    "what reset sets": (
        {"mine.py": source(within="def reset(self, task):\n    self.system_prompt = '0.25'\n")},
        "mine.py",
        "0.25",
    ),
    "an attribute of an object": (
        {"mine.py": source(below="env = E()\nenv.prefix = '0.25'")},
        "mine.py:env",
        "0.25",
    ),
    "a file that __init__ reads": (
        {
            "mine.py": source(
                within="def __init__(self):\n    self.hint = open('hint.txt').read()\n"
            ),
            "hint.txt": "0.25",
        },
        "mine.py",
        "0.25",
    ),
    "a global beside a local variable of that name": (
        {
            "mine.py": source(
                "K = 0.25\ndef score(t):\n    max([1], key=lambda K: K)\n    return K\n"
            )
        },
        "mine.py",
        "0.25",
    ),
    "the default of a field": (
        {
            "mine.py": source(
                "from dataclasses import dataclass, field\n"
                "@dataclass(slots=True)\nclass G:\n"
                "    k: float = field(default_factory=lambda: 0.25)\n"
                "def score(trace): return G().k\n"
            )
        },
        "mine.py",
        "0.25",
    ),
    "a partial method": (
        {
            "mine.py": source(
                within="def base(self, k): return k\nk = functools.partialmethod(base, 0.25)"
            )
        },
        "mine.py",
        "0.25",
    ),
    "an attribute of a function": (
        {"mine.py": source("def score(trace): return score.k\nscore.k = 0.25\n")},
        "mine.py",
        "0.25",
    ),
    **{
        f"a constant: {value}": (
            {"mine.py": source(f"from {module} import *\nK = {value}\ndef score(t): return K\n")},
            "mine.py",
            value,
        )
        for module, value in (
            ("datetime", "date(2000, 1, 2)"),
            ("decimal", "Decimal('1')"),
            ("fractions", "Fraction(1, 2)"),
            ("collections", "deque([1])"),
            ("collections", "ChainMap({1: 2})"),
            ("string", "Template('a1')"),
            ("builtins", "range(1)"),
            ("operator", "itemgetter(1)"),
        )
    },
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_is_seen(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, where, value = EDITS[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def described() -> str:
        for module in [each for each in sys.modules if each.startswith(("fp_", "mine"))]:
            del sys.modules[module]
        importlib.invalidate_caches()
        return json.dumps(json.loads(pydantic_core.to_json(describe_environment(make(where)))))

    for file, text in files.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
    first = described()
    assert described() == first
    (edited,) = [file for file, text in files.items() if value in text]
    other = value.replace("1", "3") if "1" in value else "0.75"
    (tmp_path / edited).write_text(files[edited].replace(value, other))
    assert described() != first
