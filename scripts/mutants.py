"""Measure how many small faults in the code the tests notice.

    python scripts/mutants.py --count 300             # some hours on two cores
    python scripts/mutants.py --from benchmarks/results/mutants.json

Changes one place at a time in a copy of the repository: an operator, a condition, a constant, a
result, or a call that is left out. The places are drawn by seed, as many from each room as its
share of all places. A first run of the tests records which of them execute each place, in child
processes too; then each mutant meets the quickest of those, and survives if all pass.

Writes `benchmarks/results/mutants.md`, and next to it `mutants.json`, which names each mutant by
module, qualified name and source text, so that the same set can meet other tests.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results/mutants.md"
ROOMS = ["runtime", "cluster", "traces", "sandbox", "inference", "tools", "rubrics"]
ROOMS += ["environments", "evaluation", "bridges", "viewer", "trainer", "testing"]
# What runs inside containers is not found by the record, which a process inherits.
LEFT_OUT = ("sandbox/inside/", "bridges/harbor/bundled/")
NOT_COPIED = (".git", ".venv", "__pycache__", "runs", "evals", ".mypy_cache", ".ruff_cache")

SWAPPED: list[tuple[type, type]] = [
    (ast.Eq, ast.NotEq),
    (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE),
    (ast.In, ast.NotIn),
    (ast.Is, ast.IsNot),
    (ast.And, ast.Or),
    (ast.Add, ast.Sub),
]
OPERATORS: dict[type, type] = dict(SWAPPED) | {second: first for first, second in SWAPPED}
OPERATORS |= {ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult}

SKIPPED = (ast.JoinedStr, ast.pattern, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

# Loaded by every Python process of the first run: notes the test that is running.
RECORDER = """
import builtins, os
noted = set()
def vf_reached(place):
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
    if test and (place, test) not in noted:
        noted.add((place, test))
        with open(os.environ["VF_REACHED"], "a") as log:
            log.write(f"{place}\\t{test}\\n")
    return True
if "VF_REACHED" in os.environ:
    builtins.vf_reached = vf_reached
"""
OUTCOMES = """
import json, os
def pytest_runtest_logreport(report):
    if "PYTEST_XDIST_WORKER" not in os.environ:
        with open(os.environ["VF_OUTCOMES"], "a") as log:
            log.write(json.dumps([report.nodeid, report.outcome, report.duration]) + "\\n")
"""

PAGE = """\
# Mutants

How many small faults in the code the tests notice. Each mutant met the quickest tests that execute
the place; what runs inside containers is left out.

    {command}

Measured on {day}.

{table}

Not noticed:

{rest}
"""


@dataclass(frozen=True)
class Mutant:
    """One change.

    Attributes:
        module: The file, relative to the repository.
        name: The qualified name of the function.
        source: The text of the expression.
        nth: Which of the function's expressions with this text, from 0.
        replacement: The text that replaces it.
    """

    module: str
    name: str
    source: str
    nth: int
    replacement: str

    @property
    def room(self) -> str:
        """The top folder."""
        return self.module.split("/")[0]


@dataclass
class Outcome:
    """What became of a mutant: `killed`, `timeout`, `survived`, `unreached` or `gone`."""

    mutant: Mutant
    state: str
    tests: int


def replacements(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Yield each expression that a node lets change, with its replacement."""
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in OPERATORS:
            changed = ast.Compare(node.left, [OPERATORS[type(operator)]()], node.comparators)
            yield node, ast.unparse(changed)
        case ast.BoolOp():
            yield node, ast.unparse(ast.BoolOp(OPERATORS[type(node.op)](), node.values))
        case ast.BinOp() if type(node.op) in OPERATORS and not isinstance(node.left, ast.Constant):
            changed_op = OPERATORS[type(node.op)]()
            yield node, ast.unparse(ast.BinOp(node.left, changed_op, node.right))
        case ast.If() | ast.IfExp():
            yield node.test, f"not ({ast.unparse(node.test)})"
        case ast.Constant(value=bool() as value):
            yield node, str(not value)
        case ast.Constant(value=int() | float() as value):
            yield node, str(value + 1)
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield node.value, "None"
        case ast.Return(value=ast.expr() as result) if not isinstance(result, ast.Constant):
            yield result, "None"


def inner_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what a function executes, without annotations, f-strings and inner functions."""
    yield node
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_comment"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, SKIPPED):
                continue
            yield from inner_nodes(child)


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yield each function of a module with its qualified name."""
    for child in ast.iter_child_nodes(tree):
        name = prefix
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{prefix}.{child.name}".lstrip(".")
            if not isinstance(child, ast.ClassDef):
                yield name, child
        yield from functions(child, name)


def mutants_of(root: Path, module: str) -> dict[Mutant, tuple[int, int]]:
    """Return a module's mutants, each with the start and end (bytes) of its expression."""
    text = (root / module).read_bytes()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    mutants: dict[Mutant, tuple[int, int]] = {}
    for name, function in functions(ast.parse(text)):
        times = Counter[str]()
        body = [node for statement in function.body for node in inner_nodes(statement)]  # type: ignore[attr-defined]
        for expression, replacement in (pair for node in body for pair in replacements(node)):
            start = starts[expression.lineno - 1] + expression.col_offset
            end = starts[(expression.end_lineno or 0) - 1] + (expression.end_col_offset or 0)
            source = text[start:end].decode()
            mutant = Mutant(module, name, source, times[source], replacement)
            times[source] += 1
            mutants[mutant] = (start, end)
    return mutants


def draw(root: Path, count: int, seed: int, under: list[str]) -> list[Mutant]:
    """Draw mutants of the modules under some folders, as many from each room as its share."""
    by_room = defaultdict[str, list[Mutant]](list)
    for folder in under:
        for path in sorted((root / folder).rglob("*.py")):
            module = str(path.relative_to(root))
            if not module.startswith(LEFT_OUT):
                by_room[module.split("/")[0]] += mutants_of(root, module)
    total = sum(map(len, by_room.values()))
    generator = random.Random(seed)
    return [
        mutant
        for mutants in by_room.values()
        for mutant in generator.sample(mutants, max(1, round(count * len(mutants) / total)))
    ]


def write(path: Path, text: bytes, moment: int) -> None:
    """Write a module with a time of its own: bytecode is kept by time and size."""
    path.write_bytes(text)
    os.utime(path, (moment, moment))


def run_pytest(
    root: Path, arguments: list[str], timeout: float | None = None, **variables: str
) -> int | None:
    """Run tests in the copy; return the exit status, None if they took too long."""
    outside_xdist = {key: text for key, text in os.environ.items() if "PYTEST_XDIST" not in key}
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=root,
        env=outside_xdist | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"} | variables,
        stdout=subprocess.DEVNULL if timeout else None,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def record(
    root: Path, places: dict[Mutant, tuple[int, int]], arguments: argparse.Namespace
) -> tuple[dict[Mutant, set[str]], dict[str, float]]:
    """Run the tests once; return those that reach each mutant, and how long those that pass take.

    An expression E is replaced by `(vf_reached(place) and (E))`; `id` where nothing records.
    """
    numbers = list(places)
    pieces: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for number, (mutant, (start, end)) in enumerate(places.items()):
        call = f"(getattr(__import__('builtins'), 'vf_reached', id)({number}) and ("
        pieces[mutant.module] += [(start, call), (end, "))")]
    originals = {module: (root / module).read_bytes() for module in pieces}
    for module, insertions in pieces.items():
        text = originals[module]
        for position, piece in sorted(insertions, reverse=True):
            text = text[:position] + piece.encode() + text[position:]
        ast.parse(text)
        write(root / module, text, 1)
    (root / "sitecustomize.py").write_text(RECORDER)
    (root / "mutant_outcomes.py").write_text(OUTCOMES)
    reached_log, outcome_log = root / "reached.tsv", root / "outcomes.jsonl"
    reached_log.touch()
    options = ["-p", "mutant_outcomes", "-m", arguments.marks, "-n", str(arguments.workers)]
    run_pytest(
        root,
        [*options, *arguments.tests],
        VF_REACHED=str(reached_log),
        VF_OUTCOMES=str(outcome_log),
    )
    for module, text in originals.items():
        write(root / module, text, 2)
    (root / "sitecustomize.py").unlink()
    seconds: dict[str, float] = defaultdict(float)
    failed: set[str] = set()
    for line in outcome_log.read_text().splitlines():
        test, outcome, duration = json.loads(line)
        seconds[test] += duration
        if outcome != "passed":
            failed.add(test)
    passing = {test: duration for test, duration in seconds.items() if test not in failed}
    reaching: dict[Mutant, set[str]] = defaultdict(set)
    for line in reached_log.read_text().splitlines():
        number_text, _, test = line.partition("\t")
        if test in passing:
            reaching[numbers[int(number_text)]].add(test)
    return reaching, passing


def choose(tests: set[str], seconds: dict[str, float], room: str, limit: float) -> list[str]:
    """Return the quickest tests within a time, those of the room first; at least one."""
    chosen: list[str] = []
    left = limit
    for test in sorted(tests, key=lambda t: (not t.startswith(f"tests/{room}/"), seconds[t])):
        if not chosen or seconds[test] <= left:
            left -= seconds[test]
            chosen.append(test)
    return chosen


def meet(
    root: Path, mutant: Mutant, place: tuple[int, int], tests: list[str], limit: float, moment: int
) -> Outcome:
    """Run tests on one mutant."""
    path, listing = root / mutant.module, root / "selected.txt"
    original = path.read_bytes()
    listing.write_text("\n".join(tests))
    start, end = place
    changed = original[:start] + f"({mutant.replacement})".encode() + original[end:]
    write(path, changed, moment)
    try:
        status = run_pytest(root, ["-x", f"@{listing}"], limit)
    finally:
        write(path, original, moment + 1)
    state = {0: "survived", None: "timeout"}.get(status, "killed")
    return Outcome(mutant, state, len(tests))


def table(outcomes: list[Outcome]) -> str:
    """Return the share killed by room as a Markdown table."""
    lines = ["| room | mutants | killed | by time | survived | unreached | share killed |"]
    lines.append("|---|---|---|---|---|---|---|")
    for room in [*ROOMS, "all"]:
        states = Counter(o.state for o in outcomes if room in (o.mutant.room, "all"))
        del states["gone"]
        if total := states.total():
            share = 100 * (states["killed"] + states["timeout"]) / total
            counts = [total, *(states[s] for s in ("killed", "timeout", "survived", "unreached"))]
            lines.append(f"| {room} | {' | '.join(map(str, counts))} | {share:.0f}% |")
    return "\n".join(lines)


def report(outcomes: list[Outcome], command: str) -> str:
    """Return the page of results."""
    rest = [
        f"- `{o.mutant.module}`, `{o.mutant.name}`: "
        f"`{' '.join(o.mutant.source.split())[:60]}` as "
        f"`{' '.join(o.mutant.replacement.split())[:60]}` ({o.state})"
        for o in outcomes
        if o.state in ("survived", "unreached")
    ]
    day = time.strftime("%Y-%m-%d", time.gmtime())
    return PAGE.format(command=command, day=day, table=table(outcomes), rest="\n".join(rest))


def main() -> None:
    """Draw mutants, or read them, and let them meet the tests."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=300, help="how many mutants")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--from", type=Path, dest="source", help="a mutants.json: the same mutants")
    parser.add_argument(
        "--under", nargs="+", default=ROOMS, metavar="FOLDER", help="rooms, or folders of rooms"
    )
    parser.add_argument("--marks", default="not slow", help="pytest's -m for the tests")
    parser.add_argument("--seconds", type=float, default=20, help="of tests for each mutant")
    parser.add_argument("--workers", default=2, type=int, help="processes of the first run")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the page of results")
    parser.add_argument("--tests", nargs="+", default=[], metavar="PATH", help="only these tests")
    arguments = parser.parse_args()
    if arguments.source:
        rows = json.loads(arguments.source.read_text())
        wanted = [Mutant(**row["mutant"]) for row in rows]
    else:
        wanted = draw(ROOT, arguments.count, arguments.seed, arguments.under)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the copy is removed
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        root = Path(folder) / "tree"
        shutil.copytree(ROOT, root, symlinks=True, ignore=shutil.ignore_patterns(*NOT_COPIED))
        places: dict[Mutant, tuple[int, int]] = {}
        for module in sorted({m.module for m in wanted if (root / m.module).exists()}):
            places |= mutants_of(root, module)
        present = {mutant: places[mutant] for mutant in wanted if mutant in places}
        reaching, seconds = record(root, present, arguments)
        outcomes: list[Outcome] = []
        for number, mutant in enumerate(wanted):
            chosen = choose(reaching[mutant], seconds, mutant.room, arguments.seconds)
            if mutant not in present:
                outcome = Outcome(mutant, "gone", 0)
            elif not chosen:
                outcome = Outcome(mutant, "unreached", 0)
            else:
                limit = 120 + 5 * sum(seconds[test] for test in chosen)
                outcome = meet(root, mutant, present[mutant], chosen, limit, 10 + 2 * number)
            outcomes.append(outcome)
            progress = f"{number + 1}/{len(wanted)} {outcome.state} ({outcome.tests} tests)"
            print(f"{progress}: {mutant.module} {mutant.name}", flush=True)
            arguments.out.with_suffix(".json").write_text(
                json.dumps([asdict(o) for o in outcomes], indent=1) + "\n"
            )
    command = shlex.join(["python", "scripts/mutants.py", *sys.argv[1:]])
    arguments.out.write_text(report(outcomes, command))
    print(table(outcomes))


if __name__ == "__main__":
    main()
