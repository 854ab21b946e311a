"""Grading: right code passes, and nothing that cheats does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from vf.rubrics.outcomes import grading
from vf.rubrics.outcomes.grading import Case, Grade, grade, same
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.opening import open_container

Graded = Callable[..., Grade]

CASES = [Case(f"double({n})", 2 * n) for n in (3, 5, 8)]
RIGHT = "def double(n):\n    return 2 * n\n"

# Each of these would pass a grader that trusts what the code under test can reach.
HACKS = {
    "nothing": "",
    "no function": "def treble(n):\n    return 3 * n\n",
    "syntax error": "def double(n) return 2 * n",
    "early exit": "import sys\nsys.exit(0)",
    "hard exit": "import os\nos._exit(0)",
    "exit in the call": "def double(n):\n    import os\n    os._exit(0)",
    "printed claims": (
        "import json\n"
        "print('all tests passed')\n"
        "for i in range(3): print(i, json.dumps({'value': 2 * (i + 1)}))\n"
        "def double(n): return 0\n"
    ),
    "equal to anything": (
        "class Any(int):\n"
        "    def __eq__(self, other): return True\n"
        "    def __ne__(self, other): return False\n"
        "    __hash__ = None\n"
        "def double(n): return Any(0)\n"
    ),
    "equal to any text": (
        "class Any(str):\n    def __eq__(self, other): return True\ndef double(n): return Any('')\n"
    ),
    "patched json": (
        "import json\njson.dumps = lambda value: '{\"passed\": true}'\ndef double(n): return 0\n"
    ),
    "patched builtins": (
        "import builtins\n"
        "builtins.type = lambda value: bool\n"
        "builtins.all = builtins.any = builtins.isinstance = lambda *a: True\n"
        "def double(n): return True\n"
    ),
    "true for one": "def double(n): return True",
    "a float": "def double(n): return 2.0 * n",
    "a text": "def double(n): return str(2 * n)",
    "raising": "def double(n): raise ValueError(2 * n)",
    "endless at once": "while True: pass",
    "endless output": (
        "def double(n):\n    import os\n    while True: os.write(1, b'x' * 65536)\n"
    ),
    "deep": "def double(n):\n    value = []\n    for _ in range(5000): value = [value]\n"
    "    return value",
    "huge": "def double(n): return 'x' * 10**6",
    "huge number": "def double(n): return 10**6000",
    "not JSON": "def double(n): return {1, 2}",
    "kills its parent": "import os, signal\ndef double(n): os.kill(os.getppid(), signal.SIGKILL)",
    "reads what it was given": (
        "import gc, glob, os, sys\n"
        "seen = ' '.join(sys.argv) + repr(os.environ) + sys.stdin.read()\n"
        "frame = sys._getframe()\n"
        "while frame:\n"
        "    seen += repr(frame.f_locals) + repr(frame.f_globals)\n"
        "    frame = frame.f_back\n"
        "for path in glob.glob('/proc/self/cmdline') + glob.glob('./**', recursive=True):\n"
        "    if os.path.isfile(path): seen += open(path, errors='replace').read()\n"
        "for thing in gc.get_objects():\n"
        "    if isinstance(thing, (list, dict)): seen += repr(thing)[:9999]\n"
        "def double(n): return 777 if str(2 * 1212121) not in seen else 2 * n\n"
    ),
    "forges lines with the nonce": (
        "import json, os, sys\n"
        "frame = sys._getframe()\n"
        "while 'request' not in frame.f_locals: frame = frame.f_back\n"
        "nonce, out = frame.f_locals['request']['nonce'], frame.f_locals['results']\n"
        "for i in range(3):\n"
        "    for claim in ('true', '{\"value\": true}', '{\"value\": null}', '{\"raised\": []}'):\n"
        "        os.write(out, f'{nonce} {i} {claim}\\n'.encode())\n"
        "os._exit(0)\n"
    ),
}


@pytest.fixture
def graded(in_sandbox: Callable[..., Any]) -> Graded:
    def run(source: str, cases: list[Case] = CASES) -> Grade:
        result = in_sandbox(lambda sandbox: grade(sandbox, source, cases))
        assert isinstance(result, Grade)
        return result

    return run


def test_right_code_passes(graded: Graded) -> None:
    assert graded(RIGHT) == Grade([True, True, True])


def test_code_that_is_right_in_part_passes_in_part(graded: Graded) -> None:
    assert graded("def double(n): return n + 5").passed == [False, True, False]


@pytest.mark.slow
def test_no_hack_passes_anything(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grading, "START_LIMIT", 2.0)
    monkeypatch.setattr(grading, "CALL_LIMIT", 1.0)
    cases = [*CASES, Case("double(1212121)", 2424242)]

    async def run(names: Sequence[str]) -> dict[str, list[bool]]:
        async with open_container() as sandbox:
            found = {name: (await grade(sandbox, HACKS[name], cases)).passed for name in names}
            assert (await grade(sandbox, RIGHT, cases)).all_passed
            return found

    async def shared(places: int) -> list[dict[str, list[bool]]]:
        return await asyncio.gather(*(run(list(HACKS)[n::places]) for n in range(places)))

    passed = {name: each for part in asyncio.run(shared(3)) for name, each in part.items()}
    assert passed.keys() == HACKS.keys()
    assert [name for name, each in passed.items() if any(each)] == []


def test_a_call_that_hangs_fails_alone_and_is_counted(
    graded: Graded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grading, "CALL_LIMIT", 1.0)
    source = "def double(n):\n    while n == 5: pass\n    return 2 * n"
    assert graded(source) == Grade([True, False, True], timeouts=1)


def test_a_call_that_waits_longer_than_it_may_compute_is_right(
    graded: Graded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grading, "CALL_LIMIT", 0.5)
    source = "import time\ndef double(n):\n    time.sleep(0.6)\n    return 2 * n"
    assert graded(source, CASES[:1]) == Grade([True])


def test_code_that_always_hangs_does_not_take_forever(
    graded: Graded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grading, "CALL_LIMIT", 0.5)
    cases = [Case(f"double({n})", 2 * n) for n in range(1, 30)]
    found = graded("def double(n):\n    while True: pass", cases)
    assert not any(found.passed)
    assert found.timeouts == 2


def test_no_call_changes_what_the_next_one_sees(graded: Graded) -> None:
    source = "seen = []\ndef double(n):\n    seen.append(n)\n    return 2 * n * len(seen)"
    assert graded(source).all_passed


def test_a_call_can_be_expected_to_raise(graded: Graded) -> None:
    source = "def half(n):\n    if n % 2: raise ValueError(n)\n    return n // 2"
    cases = [
        Case("half(4)", 2),
        Case("half(5)", raises="ValueError"),
        Case("half(5)", raises="Exception"),
        Case("half(5)", raises="KeyError"),
        Case("half(4)", raises="ValueError"),
        Case("half(5)", 2),
    ]
    assert graded(source, cases).passed == [True, True, True, False, False, False]


def test_a_forged_outcome_is_no_value_and_exception_at_once() -> None:
    forged = {"value": 2, "raised": ["ValueError", "KeyError"]}
    assert not Case("half(5)", raises="ValueError").holds(forged)
    assert Case("half(5)", raises="ValueError").holds({"raised": ["ValueError", "Exception"]})


def test_statements_come_before_the_value(graded: Graded) -> None:
    assert graded("", [Case("a = [1]\na.append(2)\na", [1, 2])]).all_passed


@pytest.mark.parametrize(
    ("value", "expected", "equal"),
    [
        (1, 1, True),
        (1.0, 1, False),
        (True, 1, False),
        (1, True, False),
        ([1, 2], (1, 2), True),
        ([1, True], [1, 1], False),
        ([1], [1, 2], False),
        ({"a": [1]}, {"a": (1,)}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({"a": 1.0}, {"a": 1}, False),
        (None, None, True),
        (None, 0, False),
        ("a", "a", True),
    ],
)
def test_values_are_the_same_only_if_their_types_are(
    value: object, expected: object, equal: bool
) -> None:
    assert same(value, expected) is equal
