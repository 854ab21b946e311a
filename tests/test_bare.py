"""vf-rl without extras: what works, and how what does not says which extra it needs."""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from extra_acts import ACTS, ASK_FIRST, UNTRIED, WANTS

from tests.bare import PROJECT, ROOT, closure, modules_of, own_modules, run_bare
from vf.runtime.extras import BRINGS, extra_of, missing_package

EXTRAS = PROJECT["optional-dependencies"]
FOR_US = {"docs", "test", "dev"}  # extras that no part of the library needs
ROOMS = sorted(path for path in (ROOT / "vf").iterdir() if path.is_symlink())
TASKS = ROOT / "bridges" / "harbor" / "bundled"  # what is in there runs in containers
FILES = [
    path
    for room in ROOMS
    for path in sorted((ROOT / room.name).rglob("*.py"))
    if TASKS not in path.parents
]
API = "http://127.0.0.1:1/v1"  # nobody answers there
IN_SANDBOXES = {"pytest"}  # imported by what runs in a task's sandbox
BY_HAND = {"chz", "tinker_cookbook"}  # pip cannot install it: see docs/tinker-cookbook.md

ROLLOUT = """
import asyncio, vf

class Sums(vf.Environment):
    rubric = vf.Rubric(outcome=vf.outcomes.numeric())

    def tasks(self, split):
        return vf.tasks_from([{"prompt": f"{n} + 1?", "answer": n + 1} for n in range(99)], split)

    @vf.tool
    def add(self, a: int, b: int) -> int:
        '''Add two numbers.

        Args:
            a: One.
            b: The other.
        '''
        return a + b

env = Sums()
task = next(iter(env.tasks("eval")))
model = vf.ScriptedModel([{"add": {"a": 1, "b": 2}}, f"Answer: {task.answer}"])
trace = asyncio.run(vf.rollout(env, task, model))
assert trace.reward == 1.0, trace.error
"""


def test_a_rollout_and_every_name_of_vf_need_no_extra_and_a_rollout_loads_few_modules() -> None:
    shown = "print(*sorted(m for m in sys.modules if m.startswith('vf')))"
    done = run_bare(f"{ROLLOUT}\n{shown}\nfor name in vf.__all__: getattr(vf, name)")
    assert (done.returncode, done.stdout.count("\n")) == (0, 1), done.stdout
    loaded = done.stdout.split()
    sandbox = [name.removeprefix("vf.sandbox") for name in loaded if "vf.sandbox" in name]
    assert sandbox == ["", ".contract", ".source", ".spec"]
    played = {name.removeprefix("vf.environments.") for name in loaded}
    assert played & {"agent", "agent_episode", "multi_agent", "roles"} == set()
    assert len(loaded) <= 65  # packages included


def test_every_command_and_registered_environment_is_imported_without_extras() -> None:
    """What they need of an extra is imported where it is used, so that it can be named."""
    commands = sorted(ROOT.glob("*/commands/*.py"))
    modules = [f"vf.{path.parts[-3]}.commands.{path.stem}" for path in commands]
    points = PROJECT["entry-points"]["vf.environments"].values()
    modules += sorted({point.partition(":")[0] for point in points})
    code = "import importlib\nfor name in sys.argv[1:]: importlib.import_module(name)"
    done = run_bare(code, *modules)
    assert (done.returncode, done.stdout) == (0, "")


def test_every_extra_is_in_the_table_with_all_that_it_brings() -> None:
    assert set(BRINGS) == set(EXTRAS) - FOR_US


@pytest.mark.parametrize("extra", BRINGS)
def test_an_extra_brings_what_the_table_says(extra: str) -> None:
    named = set(BRINGS[extra].split())
    brought = modules_of(EXTRAS[extra])
    for requirement in EXTRAS[extra]:
        name = re.match(r"[\w.-]+", requirement)
        assert name is not None
        try:
            own = own_modules(name[0])
        except PackageNotFoundError:  # vLLM, DeepSpeed and bitsandbytes are not in this environment
            own = {name[0]}
            brought |= own
        assert named & own, f"{extra}: {requirement} is not in the table; it has {sorted(own)}"
    assert named <= brought, f"{extra} does not bring {sorted(named - brought)}"


def test_the_core_brings_nothing_of_the_table() -> None:
    core = modules_of(PROJECT["dependencies"])
    # h11 comes with some versions of openai only.
    assert {name for names in BRINGS.values() for name in names.split()} & core <= {"h11"}
    assert "rich" in core
    assert "torch" not in closure(tuple(PROJECT["dependencies"]))


@cache
def nodes(path: Path) -> list[ast.AST]:
    """Return the imports and calls of a file."""
    kinds = ast.Import | ast.ImportFrom | ast.Call
    tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [node for node in tree if isinstance(node, kinds)]


def imported(path: Path) -> set[str]:
    """Return the top-level names of all that a file imports, also within functions."""
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


@pytest.mark.slow
@pytest.mark.gate
def test_every_package_that_is_imported_is_of_the_core_or_of_an_extra() -> None:
    known = modules_of(PROJECT["dependencies"]) | sys.stdlib_module_names
    known |= IN_SANDBOXES | BY_HAND | {"vf"}
    unknown = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in FILES
        for name in imported(path) - known
        if extra_of(name) is None
    }
    assert unknown == set()


def test_who_loads_an_optional_package_names_an_extra_that_brings_it() -> None:
    calls = [
        (path, node)
        for path in FILES
        for node in nodes(path)
        if isinstance(node, ast.Call) and len(node.args) == 2 and ast.unparse(node.func) == "load"
        if all(isinstance(argument, ast.Constant) for argument in node.args)
    ]
    assert len(calls) > 30
    for path, node in calls:
        module, extra = (ast.literal_eval(argument) for argument in node.args)
        assert extra_of(module, extra) == extra, f"{path.relative_to(ROOT)}:{node.lineno}"


@pytest.mark.slow
@pytest.mark.gate
def test_what_needs_an_extra_says_so_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('model = "tiny"\n[env]\nid = "calculator"\n')
    (tmp_path / "sft.toml").write_text('model = "tiny"\n[data]\ntraces = ["texts.jsonl"]\n')
    (tmp_path / "texts.jsonl").write_text('{"id": "1", "text": "A text."}\n')
    code = (
        "from vf.trainer.commands.main import main\n"
        "for line in sys.argv[1:]:\n    print(f'exit {main(line.split())}', flush=True)"
    )
    lines = [(line, extra) for extra, lines in WANTS.items() for line in lines]
    words = [line.removeprefix("vf-rl ").format(api=API) for line, _ in lines]
    done = run_bare(code, *words, cwd=tmp_path)
    answers = re.split(r"^exit 2\n", done.stdout, flags=re.MULTILINE)
    assert len(answers) == len(lines) + 1, done.stdout
    for (line, extra), answer in zip(lines, answers, strict=False):
        assert answer.count("\n") == 1, f"{line}: {answer}"
        assert f"pip install 'vf-rl[{extra}]'" in answer, f"{line}: {answer}"


def test_a_module_that_an_installed_package_lacks_is_no_missing_package() -> None:
    absent = ModuleNotFoundError("No module named 'mcp.new'", name="mcp.new")
    assert missing_package(absent) is None
    assert missing_package(ModuleNotFoundError("No module named 'mine'", name="mine")) is None


def test_every_extra_is_tried_alone() -> None:
    """By `scripts/bare_user.py`, or it is said there why not."""
    assert {*ACTS, *UNTRIED} == set(EXTRAS)
    assert not {*ACTS} & {*UNTRIED}
    assert set(PROJECT["entry-points"]["vf.environments"]) >= ASK_FIRST
