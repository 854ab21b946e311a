"""The house holds: floors, file sizes, package list, import names, shallow inheritance."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
FLOORS = {
    "runtime": 0,
    "traces": 1,
    "sandbox": 2,
    "inference": 2,
    "tools": 3,
    "rubrics": 3,
    "environments": 4,
    "evaluation": 5,
    "bridges": 6,
    "trainer": 7,
}
MAX_LINES = 400
MAX_DEPTH = 2


def sources(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


FILES = [path for room in FLOORS for path in sources(room)]
EVERY_FILE = FILES + [path for top in ("tests", "benchmarks") for path in sources(top)]
EVERY_FILE.append(ROOT / "vf" / "__init__.py")


def label(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), label(path))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(["vf", *(part for part in parts if part != "__init__")])


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Yield line and absolute module of every import, those inside functions included."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield node.lineno, name.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module_name(path).split(".")
                up = node.level - (path.name == "__init__.py")
                base = ".".join([*package[: len(package) - up], *filter(None, [base])])
            for name in node.names:
                yield node.lineno, f"{base}.{name.name}"


def climbs(path: Path) -> list[str]:
    """Return the imports of a file that do not stay in its room or go down a floor."""
    room = path.relative_to(ROOT).parts[0]
    found = []
    for line, module in imports(path):
        top, *rest = module.split(".")
        if top != "vf":
            continue
        target = rest[0] if rest else ""
        if target != room and FLOORS.get(target, 99) >= FLOORS[room]:
            found.append(f"{label(path)}:{line} imports {module}")
    return found


def test_there_are_files_to_check_in_every_room() -> None:
    assert all(sources(room) for room in FLOORS)


@pytest.mark.parametrize("room", FLOORS)
def test_imports_only_go_down_a_floor(room: str) -> None:
    assert [climb for path in sources(room) for climb in climbs(path)] == []


@pytest.mark.parametrize("path", EVERY_FILE, ids=label)
def test_no_room_is_imported_by_its_top_level_name(path: Path) -> None:
    found = [(line, name) for line, name in imports(path) if name.split(".")[0] in FLOORS]
    assert found == []


@pytest.mark.parametrize("path", EVERY_FILE, ids=label)
def test_no_file_is_longer_than_a_reader_can_hold(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


def test_no_module_is_called_utils() -> None:
    assert [label(path) for path in EVERY_FILE if path.stem in ("utils", "util", "helpers")] == []


def packaging() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    return found["setuptools"]  # type: ignore[no-any-return]


def test_the_package_list_is_what_is_on_disk() -> None:
    on_disk = {module_name(path.parent) for path in FILES} | {"vf"}
    listed = packaging()["packages"]
    assert len(listed) == len(set(listed))
    assert set(listed) == on_disk


def test_every_package_is_mapped_to_its_folder() -> None:
    settings = packaging()
    mapped = settings["package-dir"]
    assert mapped == {f"vf.{room}": room for room in FLOORS}
    for package in settings["packages"]:
        room = ".".join(package.split(".")[:2])
        assert package == "vf" or room in mapped


def test_every_package_says_what_it_is() -> None:
    folders = {path.parent for path in FILES}
    missing = [label(f) for f in folders if not ast.get_docstring(parse(f / "__init__.py"))]
    assert missing == []


@pytest.mark.parametrize("room", FLOORS)
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
        chains = [ancestors(base) for base in own[name] if base in own and base != name]
        return [*max(chains, key=len, default=[]), name]

    chains = [ancestors(name) for name in own]
    assert ["Environment", "Calculator"] in chains
    too_deep = [c for c in chains if len(c) > MAX_DEPTH and c[0] != "VfError"]
    assert too_deep == []


def test_the_checks_see_what_they_forbid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    bad = tmp_path / "rubrics" / "bad.py"
    bad.parent.mkdir()
    bad.write_text(
        "def later():\n"
        "    from vf.environments.runner import rollout\n"
        "    from ..trainer import losses\n"
        "    from vf import rollout\n"
        "    import traces.trace\n"
        "from vf.traces.trace import Trace\n"
        "from . import rubric\n"
    )
    assert [climb.split(" imports ")[1] for climb in climbs(bad)] == [
        "vf.environments.runner.rollout",
        "vf.trainer.losses",
        "vf.rollout",
    ]
    assert "traces.trace" in [name for _, name in imports(bad)]
