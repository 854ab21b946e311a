"""The house holds: floors of rooms and folders, no circle, file sizes, packages, inheritance."""

from __future__ import annotations

import ast
import gc
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent

# The folders with Python files, floor by floor from the ground up. A file imports from its own
# folder and from lower floors. Rooms that share a number in CONTRIBUTING.md do not know each other.
HOUSE = [
    ["runtime"],
    ["cluster"],
    ["traces"],
    ["traces/export"],
    ["traces/view"],
    ["sandbox", "inference"],
    ["sandbox/inside"],
    [
        "sandbox/container",
        "sandbox/bubblewrap",
        "inference/parsing",
        "inference/vllm",
    ],
    ["sandbox/images", "inference/rendering"],
    ["sandbox/services"],
    ["sandbox/hosting"],
    ["sandbox/selfcheck"],
    ["inference/embedded"],
    ["inference/models"],
    ["inference/endpoint"],
    ["sandbox/commands", "inference/commands"],
    ["tools", "rubrics/outcomes"],
    ["tools/search", "rubrics"],
    ["tools/mcp", "tools/commands", "rubrics/penalties"],
    ["environments/datasets"],
    ["environments"],
    ["environments/agents", "environments/authoring", "environments/bundled/geo"],
    [
        "environments/bundled/problems",
        "environments/bundled/repos",
        "environments/bundled/support",
    ],
    ["environments/bundled", "environments/commands"],
    ["evaluation"],
    ["evaluation/validation"],
    ["evaluation/commands"],
    ["bridges"],
    ["bridges/gym", "bridges/openenv", "bridges/reasoning_gym", "bridges/textarena"],
    [
        "bridges/trl",
        "bridges/verifiers",
        "bridges/harbor",
        "bridges/swe",
        "bridges/tinker_cookbook",
    ],
    ["viewer"],
    ["trainer/settings"],
    ["trainer/run"],
    ["trainer/processes"],
    ["trainer/learning/attention"],
    ["trainer/learning/advantages"],
    ["trainer/learning/batches"],
    ["trainer/learning/losses"],
    ["trainer/learning/sharding"],
    ["trainer/learning/model"],
    ["trainer/learning/memory"],
    ["trainer/learning"],
    ["trainer/tinker_backend"],
    ["trainer/watching"],
    ["trainer/collecting"],
    ["trainer/saving"],
    ["trainer/sft", "trainer/tinker_api"],
    ["trainer"],
    ["trainer/commands"],
    ["testing"],
]
FLOORS = {folder: number for number, folders in enumerate(HOUSE) for folder in folders}
ROOMS = list(dict.fromkeys(folder.split("/")[0] for folder in FLOORS))
BESIDE = {  # on one floor: neither knows the other
    ("sandbox", "inference"),
    ("tools", "rubrics"),
    ("bridges", "viewer"),
}
MAX_LINES = 400
MAX_DEPTH = 2
BASES = {"MultiAgentEnvironment"}  # that others derive from: a chain begins there, too


# Task folders are data: what is in them runs in containers.
DATA = ROOT / "bridges" / "harbor" / "bundled"


def sources(room: str) -> list[Path]:
    return sorted(path for path in (ROOT / room).rglob("*.py") if DATA not in path.parents)


FILES = [path for room in ROOMS for path in sources(room)]
EVERY_FILE = FILES + [path for top in ("tests", "benchmarks", "scripts") for path in sources(top)]
EVERY_FILE += sorted((ROOT / "vf").glob("*.py"))


def label(path: Path) -> str:
    return str(path.relative_to(ROOT))


def folder_of(path: Path) -> str:
    return label(path.parent)


@cache
def parse(path: Path) -> ast.Module:
    # Until Python 3.12, a tree cannot be built while another one is: the collector might have
    # what it finalizes, or another thread, parse something meanwhile.
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"), label(path))
    finally:
        gc.enable()


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(["vf", *(part for part in parts if part != "__init__")])


@cache
def imports(path: Path) -> list[tuple[int, str]]:
    """Return line and absolute name of every import, those inside functions included."""
    found = []
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, name.name) for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module_name(path).split(".")
                up = node.level - (path.name == "__init__.py")
                base = ".".join([*package[: len(package) - up], *filter(None, [base])])
            found += [(node.lineno, f"{base}.{name.name}") for name in node.names]
    return found


def home(name: str) -> Path | None:
    """Return the file that defines an imported name; None for names of other packages."""
    parts = name.split(".")
    if parts[0] != "vf":
        return None
    for end in (len(parts), len(parts) - 1):
        place = ROOT.joinpath(*parts[1:end])
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if end > 1 and file.is_file():
                return file
    return ROOT / "vf" / "__init__.py"


def climbs(path: Path) -> Iterator[str]:
    """Yield the imports of a file that neither stay in its folder nor go down a floor."""
    here = folder_of(path)
    for line, name in imports(path):
        if (target := home(name)) is None:
            continue
        there = folder_of(target)
        rooms = here.split("/")[0], there.split("/")[0]
        stays = there == here and rooms[1] != "vf"
        falls = FLOORS.get(there, 99) < FLOORS[here]
        if not (stays or falls) or rooms in BESIDE or rooms[::-1] in BESIDE:
            yield f"{label(path)}:{line} imports {name}"


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Return a circle of the graph, first name repeated at the end; empty if there is none."""
    finished: set[str] = set()

    def visit(node: str, path: list[str]) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in finished:
            return []
        for target in sorted(graph.get(node, ())):
            if found := visit(target, [*path, node]):
                return found
        finished.add(node)
        return []

    return next((found for node in sorted(graph) if (found := visit(node, []))), [])


def module_graph(files: list[Path]) -> dict[str, set[str]]:
    return {
        module_name(path): {
            module_name(target)
            for _, name in imports(path)
            if (target := home(name)) is not None and target != path
        }
        for path in files
    }


def test_every_folder_has_a_floor() -> None:
    assert {folder_of(path) for path in FILES} == set(FLOORS)


@pytest.mark.parametrize("room", ROOMS)
def test_imports_only_go_down_a_floor(room: str) -> None:
    assert [climb for path in sources(room) for climb in climbs(path)] == []


def test_no_modules_import_one_another_in_a_circle() -> None:
    assert circle(module_graph(FILES)) == []


def test_no_room_is_imported_by_its_top_level_name() -> None:
    named = re.compile(rf"^\s*(from|import)\b.*(?<![\w.])({'|'.join(ROOMS)})\b", re.MULTILINE)
    assert [
        f"{label(path)}:{line} imports {name}"
        for path in EVERY_FILE
        if named.search(path.read_text("utf-8"))  # most need not be parsed
        for line, name in imports(path)
        if name.split(".")[0] in ROOMS
    ] == []


def test_no_file_is_longer_than_a_reader_can_hold() -> None:
    lengths = {label(path): len(path.read_text("utf-8").splitlines()) for path in EVERY_FILE}
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


def test_no_call_hides_its_arguments_in_a_literal() -> None:
    """``f(*(a, b))`` fits a line and says nothing: the arguments can be named instead."""
    hidden = [
        f"{label(path)}:{node.lineno}"
        for path in FILES
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Call)
        for argument in node.args[-1:]
        if isinstance(argument, ast.Starred) and isinstance(argument.value, ast.Tuple | ast.List)
        if not any(isinstance(part, ast.Constant) for part in argument.value.elts)
    ]
    assert hidden == []


def test_every_function_inside_a_test_is_used() -> None:
    """A test that does not call its body cannot fail."""
    unused = [
        f"{label(path)}: {name}"
        for path in EVERY_FILE
        if path.name.startswith("test_")
        for block in path.read_text("utf-8").split("\n\n\n")
        if re.search(r"^(async )?def test_", block, re.MULTILINE)
        for name in re.findall(r"^    (?:async )?def (\w+)\(", block, re.MULTILINE)
        if len(re.findall(rf"\b{name}\b", block)) == 1
    ]
    assert unused == []


def test_no_module_is_called_utils() -> None:
    assert [label(path) for path in EVERY_FILE if path.stem in ("utils", "util", "helpers")] == []


def packaging() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    return found["setuptools"]  # type: ignore[no-any-return]


def test_the_package_list_is_what_is_on_disk() -> None:
    settings = packaging()
    data = {package for package, globs in settings["package-data"].items() if globs == ["*"]}
    on_disk = {module_name(path.parent) for path in FILES} | {"vf"}
    listed = settings["packages"]
    assert len(listed) == len(set(listed))
    assert set(listed) - data == on_disk


def test_every_package_is_mapped_to_its_folder() -> None:
    settings = packaging()
    mapped = settings["package-dir"]
    assert mapped == {f"vf.{room}": room for room in ROOMS}
    for package in settings["packages"]:
        room = ".".join(package.split(".")[:2])
        assert package == "vf" or room in mapped


def test_every_package_says_what_it_is() -> None:
    folders = {path.parent for path in FILES}
    missing = [label(f) for f in folders if not ast.get_docstring(parse(f / "__init__.py"))]
    assert missing == []


@pytest.mark.parametrize("room", ROOMS)
def test_the_link_for_editors_leads_to_its_room(room: str) -> None:
    link = ROOT / "vf" / room
    assert link.is_symlink()
    assert link.readlink() == Path("..") / room


def bases() -> dict[str, list[str]]:
    """Return the project's own classes with the names of their bases."""
    found: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.ClassDef):
                names = [ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases]
                found.setdefault(node.name, []).extend(names)
    return found


def test_inheritance_is_shallow() -> None:
    own = bases()

    def ancestors(name: str) -> list[str]:
        """Return the longest chain of the project's own classes that ends in this one."""
        if name in BASES:
            return [name]
        chains = [ancestors(base) for base in own[name] if base in own and base != name]
        return [*max(chains, key=len, default=[]), name]

    chains = [ancestors(name) for name in own]
    assert ["Environment", "Calculator"] in chains
    too_deep = [c for c in chains if len(c) > MAX_DEPTH and c[0] != "VfError"]
    assert too_deep == []


@pytest.fixture
def bad_house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A house of its own, in which every rule can be broken."""
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    for name in ("vf/__init__", "environments/runner", "trainer/losses", "traces/trace"):
        file = tmp_path / f"{name}.py"
        file.parent.mkdir(parents=True)
        file.touch()
    (tmp_path / "rubrics").mkdir()
    (tmp_path / "tools").mkdir()
    return tmp_path


def test_the_checks_see_an_import_that_climbs(bad_house: Path) -> None:
    bad = bad_house / "rubrics" / "bad.py"
    (bad_house / "tools" / "box.py").touch()
    (bad_house / "rubrics" / "rubric.py").touch()
    bad.write_text(
        "def later():\n"
        "    from vf.environments.runner import rollout\n"
        "    from ..trainer import losses\n"
        "    from vf import rollout\n"
        "    from vf.tools import box\n"
        "    import traces.trace\n"
        "from vf.traces.trace import Trace\n"
        "from . import rubric\n"
    )
    assert sorted(climb.split(" imports ")[1] for climb in climbs(bad)) == [
        "vf.environments.runner.rollout",
        "vf.rollout",
        "vf.tools.box",
        "vf.trainer.losses",
    ]
    assert "traces.trace" in [name for _, name in imports(bad)]


def test_the_checks_see_a_folder_that_imports_a_higher_one(bad_house: Path) -> None:
    (bad_house / "trainer" / "watching").mkdir()
    bad = bad_house / "trainer" / "watching" / "bad.py"
    bad.write_text("from vf.trainer.losses import loss\n")
    assert [climb.split(" imports ")[1] for climb in climbs(bad)] == ["vf.trainer.losses.loss"]


def test_the_checks_see_a_circle(bad_house: Path) -> None:
    names = ("one", "two", "three")
    files = [bad_house / "rubrics" / f"{name}.py" for name in names]
    for file, target in zip(files, ("two", "three", "one"), strict=True):
        file.write_text(f"def later():\n    from vf.rubrics.{target} import name\n")
    rubrics = [f"vf.rubrics.{name}" for name in ("one", "two", "three", "one")]
    assert circle(module_graph(files)) == rubrics
    files[2].write_text("")
    imports.cache_clear()
    parse.cache_clear()
    assert circle(module_graph(files)) == []
