"""What ``import vf`` offers, and what it costs."""

from __future__ import annotations

import importlib.resources
import subprocess
import sys

import pytest

import vf

HEAVY = ("torch", "transformers", "openai", "aiohttp", "numpy", "rich", "starlette")
NEEDS_TORCH = {"RLTrainer"}


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
    if name in NEEDS_TORCH:
        pytest.importorskip("torch")
    home = importlib.import_module(vf._HOME[name])
    assert getattr(vf, name) is getattr(home, name)
    assert getattr(vf, name).__module__ == home.__name__


def test_the_lists_of_names_agree() -> None:
    assert list(vf.__all__) == sorted(vf._HOME)
    assert dir(vf) == sorted(vf.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'vf' has no attribute 'Traces'"):
        vf.Traces  # noqa: B018


def test_importing_vf_loads_nothing_heavy() -> None:
    assert loaded_after("import vf") == ""


def test_writing_and_running_an_environment_loads_nothing_heavy() -> None:
    code = (
        "import asyncio, vf\n"
        "env = vf.make('calculator')\n"
        "task = next(env.tasks('eval'))\n"
        "trace = asyncio.run(vf.rollout(env, task, vf.ScriptedModel(['Answer: 1'])))\n"
        "assert trace.error is None"
    )
    assert loaded_after(code) == ""


def test_everything_but_the_trainer_works_without_torch() -> None:
    names = [name for name in vf.__all__ if name not in NEEDS_TORCH]
    code = f"import sys; sys.modules['torch'] = None\nimport vf\n[getattr(vf, n) for n in {names}]"
    assert fresh(f"{code}\nprint('fine')") == "fine"


def test_the_package_is_typed() -> None:
    assert (importlib.resources.files("vf") / "py.typed").is_file()
