"""What ``import vf`` offers, and what it costs."""

from __future__ import annotations

import ast
import importlib.resources
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import vf

HEAVY = ("torch", "transformers", "openai", "aiohttp", "numpy", "rich", "starlette")


def fresh(code: str) -> str:
    """Run code in a new interpreter and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


def loaded_after(code: str) -> str:
    return fresh(f"{code}\nimport sys; print(*[m for m in {HEAVY!r} if m in sys.modules])")


@pytest.mark.parametrize("name", vf.__all__)
def test_every_public_name_is_the_one_in_its_home(name: str) -> None:
    home = importlib.import_module(vf._HOME[name])
    value = getattr(vf, name)
    if isinstance(value, ModuleType):
        assert value is home
        assert name in vf._HOME[name]
    else:
        assert value is getattr(home, name)
        assert value.__module__ == home.__name__


def test_type_checkers_see_the_same_names_from_the_same_homes() -> None:
    tree = ast.parse(Path(vf.__file__).read_text(encoding="utf-8"))
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        [name] = node.names
        assert name.asname == name.name, "only `X as X` is exported to type checkers"
        is_module = isinstance(getattr(vf, name.name), ModuleType)
        seen[name.name] = f"{node.module}.{name.name}" if is_module else node.module
    assert seen == vf._HOME
    assert dir(vf) == vf.__all__ == sorted(seen)


def test_the_names_are_few_enough_to_know() -> None:
    assert len(vf.__all__) <= 64


def test_an_unknown_name_is_an_error_with_the_nearest_names() -> None:
    with pytest.raises(AttributeError, match=r"'vf' has no attribute 'Traces'\. .*'Trace'"):
        vf.Traces  # noqa: B018
    with pytest.raises(ImportError, match=r"name 'Enviroment' from 'vf'\. .*'Environment'"):
        exec("from vf import Enviroment")
    assert not hasattr(vf, "__wrapped__")


def test_importing_vf_changes_nothing_outside_and_finds_modules_by_name() -> None:
    code = (
        "import sys; before = list(sys.meta_path), list(sys.path_hooks), list(sys.path)\n"
        "import vf\nprint(before == (sys.meta_path, sys.path_hooks, sys.path))\n"
        "from vf import runtime; print(runtime.__name__)"
    )
    assert fresh(code).split() == ["True", "vf.runtime"]


def test_writing_and_running_an_environment_loads_nothing_heavy() -> None:
    code = (
        "import asyncio, vf\n"
        "for part in vf.outcomes, vf.penalties, vf.search:\n"
        "    [getattr(part, name) for name in part.__all__]\n"
        "env = vf.make('calculator')\n"
        "task = next(env.tasks('eval'))\n"
        "trace = asyncio.run(vf.rollout(env, task, vf.ScriptedModel(['Answer: 1'])))\n"
        "assert trace.error is None"
    )
    assert loaded_after(code) == ""


def test_everything_but_the_trainer_works_without_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\nimport vf\n"
        "[getattr(vf, name) for name in vf.__all__]\n"
        "try:\n    vf.train('configs/quickstart.toml')\n"
        "except vf.ConfigError as error:\n    print(error)"
    )
    assert fresh(code) == "this needs the package 'torch': pip install 'vf-rl[train]'"


def test_the_package_is_typed() -> None:
    assert (importlib.resources.files("vf") / "py.typed").is_file()
