"""No test depends on how fast or how busy the machine is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time", "time"}
FOR_EVER = 60.0  # seconds: what sleeps so long never ends by itself
Function = ast.FunctionDef | ast.AsyncFunctionDef

# Where a fixed while passes, by file and function, and why no test can fail because it was short.
MAY_SLEEP = {
    "bridges/openenv/openenv_servers.py:step_async": "five calls together are to be late",
    "bridges/verifiers/test_from_verifiers_v0.py:respond": "they read a clock of their own",
    "evaluation/test_evaluate.py:step": "the slow thing; the others begin in the same loop",
    "inference/test_engine_lifecycle.py:slowly_fail": "the slow thing; it fails either way",
    "inference/test_many_requests.py:answer": "the slow thing; no request has a deadline",
    "sandbox/abuse/test_resources.py:attack": "looks at ten moments, whichever they are",
    "sandbox/test_reaper.py:test_a_client_killed_while_it_creates_leaves_nothing_that_lasts": (
        "looks at five moments: the engine does not say that it is done"
    ),
    "trainer/collecting/test_lost_workers.py:reset": "the slow thing, in another process",
    "trainer/collecting/test_lost_workers.py:close": "the slow thing, in another process",
    "trainer/collecting/test_outages.py:respond": "the slow thing; no answer has a deadline",
}


def called(call: ast.Call) -> str:
    """Return the last name of what is called."""
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def is_time(node: ast.AST, names: set[str]) -> bool:
    """Return whether an expression reads a clock, or contains a name that stands for a time."""
    return any(
        (isinstance(part, ast.Name) and part.id in names)
        or (isinstance(part, ast.Call) and not part.args and called(part) in CLOCKS)
        for part in ast.walk(node)
    )


def times(function: Function) -> set[str]:
    """Return the names in a function that hold times, and what is computed from them."""
    names, before = set[str](), -1
    while before < len(names):
        before = len(names)
        for node in ast.walk(function):
            match node:
                case ast.Assign(targets=[target], value=value) if is_time(value, names):
                    names |= {part.id for part in ast.walk(target) if isinstance(part, ast.Name)}
                case ast.AugAssign(target=ast.Name(id=name), value=value) if is_time(value, names):
                    names.add(name)
                case ast.Call(func=ast.Attribute(ast.Name(id=name), "append"), args=[value]):
                    names |= {name} if is_time(value, names) else set()
    return names


def upper_bounds(tree: ast.AST) -> set[int]:
    """Return the lines of assertions that a time is less than something."""
    found = set[int]()
    for function in ast.walk(tree):
        if isinstance(function, Function):
            names = times(function)
            for check in ast.walk(function):
                if isinstance(check, ast.Assert) and any(
                    is_time(side, names) for side in smaller_sides(check.test)
                ):
                    found.add(check.lineno)
    return found


def smaller_sides(test: ast.expr) -> Iterator[ast.expr]:
    """Yield what an expression asserts to be less than something else."""
    for node in ast.walk(test):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            for left, op, right in zip(sides, node.ops, sides[1:], strict=False):
                if isinstance(op, ast.Lt | ast.LtE):
                    yield left
                elif isinstance(op, ast.Gt | ast.GtE):
                    yield right


def sleeps(tree: ast.AST, function: str = "", *, waits: bool = False) -> Iterator[tuple[str, int]]:
    """Yield where a fixed while passes, except in a loop that waits for a condition."""
    for node in ast.iter_child_nodes(tree):
        inner = node.name if isinstance(node, Function) else function
        match node:
            case ast.Call(args=[ast.Constant(value=int() | float() as seconds)]):
                if called(node) == "sleep" and 0 < seconds < FOR_EVER and not waits:
                    yield inner, node.lineno
        polls = isinstance(node, ast.While) and not isinstance(node.test, ast.Constant)
        yield from sleeps(node, inner, waits=(waits or polls) and not isinstance(node, Function))


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    """The files of the tests that call a clock or sleep, parsed."""
    texts = {str(path.relative_to(TESTS)): path.read_text("utf-8") for path in TESTS.rglob("*.py")}
    calls = [f"{name}(" for name in (*CLOCKS, "sleep")]
    return {
        file: ast.parse(text)
        for file, text in sorted(texts.items())
        if any(call in text for call in calls)
    }


def test_no_assertion_is_an_upper_bound_on_time(trees: dict[str, ast.Module]) -> None:
    found = [f"tests/{file}:{line}" for file in trees for line in upper_bounds(trees[file])]
    assert not found, "assert what happened, in which order or how often (CONTRIBUTING.md)"


def test_nothing_is_taken_to_have_happened_after_a_while(trees: dict[str, ast.Module]) -> None:
    found = {f"{file}:{inner}": line for file in trees for inner, line in sleeps(trees[file])}
    new = {place: found[place] for place in found.keys() - MAY_SLEEP}
    assert not new, f"wait with tests/waiting.py, or let time jump with `clock`: {new}"
    assert MAY_SLEEP.keys() <= found.keys(), "no longer needed"


@pytest.mark.parametrize(
    ("code", "is_bound"),
    [
        ("began = time.monotonic(); work(); assert time.monotonic() - began < 5", True),
        ("began = loop.time(); work(); assert 5 > loop.time() - began", True),
        ("a = perf_counter(); took = perf_counter() - a; assert 0 < took, took", False),
        ("a = perf_counter(); took = perf_counter() - a; assert 0 < took < 9, took", True),
        ("took.append(time.time() - began); assert sorted(took)[25] <= 0.1", True),
        ("spent += process_time() - began; assert max(spent, 1) < 0.1 * whole", True),
        ("began = time.monotonic(); work(); assert time.monotonic() - began >= 5", False),
        ("began = time.monotonic(); assert count <= 9 * (time.monotonic() - began)", False),
        ("assert trace.seconds < 5", False),
    ],
)
def test_an_upper_bound_is_recognized(code: str, is_bound: bool) -> None:
    tree = ast.parse("def test():\n" + "\n".join(f"    {line}" for line in code.split("; ")))
    assert bool(upper_bounds(tree)) is is_bound


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("await asyncio.sleep(0.1)", ["test"]),
        ("await asyncio.sleep(0)", []),
        ("await asyncio.sleep(60.0)", []),
        ("time.sleep(pause)", []),
        ("while not done(): time.sleep(0.1)", []),
        ("while True: time.sleep(0.1)", ["test"]),
    ],
)
def test_a_fixed_while_is_recognized(code: str, found: list[str]) -> None:
    tree = ast.parse(f"async def test():\n    {code}")
    assert [function for function, _ in sleeps(tree)] == found
