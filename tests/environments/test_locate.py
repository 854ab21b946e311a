"""Environments in files and modules, which nobody has installed or registered."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import vf
from vf.environments import registry
from vf.environments.locate import absolute
from vf.environments.registry import label
from vf.runtime.process_pool import run_in_process

ONE = """
import vf


class Shop(vf.Environment):
    def __init__(self, size=1):
        self.size = size
"""
SEVERAL = """
import vf
from vf.runtime.process_pool import run_in_process


class Base(vf.Environment):
    pass


class Shop(Base):
    pass


class Bank(Base):
    pass


def build(size):
    return Shop()


NUMBER = 3
"""


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work in an empty folder, and leave no module, name or path behind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(registry, "_registered", {})
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def kind(id: str) -> str:
    return type(vf.make(id)).__name__


@pytest.mark.parametrize(
    "id", ["shop_of_test.py", "./shop_of_test.py", "shop_of_test.py:Shop", "shop_of_test:Shop"]
)
def test_a_file_or_a_module_is_an_environment(id: str) -> None:
    Path("shop_of_test.py").write_text(ONE)
    made = vf.make(id, size=3)
    assert isinstance(made, vf.Environment)
    assert vars(made)["size"] == 3
    assert made.id == label(id) == ("shop_of_test:Shop" if ":" in id else "shop_of_test")


def test_a_path_may_lead_anywhere_and_the_name_need_not_be_one_of_python(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "helper_of_test.py").write_text("SIZE = 7\n")
    (folder / "my-shop.py").write_text(
        f"from helper_of_test import SIZE\n{ONE}\nShop.size = SIZE\n"
    )
    assert kind("elsewhere/my-shop.py") == kind(f"{folder}/my-shop.py:Shop") == "Shop"
    assert label(f"{folder}/my-shop.py") == "my-shop"


def test_a_file_of_a_package_may_import_from_it(tmp_path: Path) -> None:
    package = tmp_path / "pack_of_test" / "inner"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package.parent / "__init__.py").touch()
    (package / "sizes.py").write_text("SIZE = 7\n")
    (package / "shop.py").write_text(f"from .sizes import SIZE\n{ONE}")
    assert kind("pack_of_test/inner/shop.py") == kind("pack_of_test.inner.shop") == "Shop"
    assert type(vf.make("pack_of_test.inner.shop:Shop")) is type(
        vf.make("pack_of_test/inner/shop.py")
    )


@pytest.mark.parametrize(
    ("more", "made"),
    [
        ("", None),
        ("vf.register('bank-of-test', Bank)", "Bank"),
        ("vf.register('bank-of-test', 'several_of_test:Bank')", "Bank"),
        ("del Shop", "Bank"),  # what others inherit from does not count
        ("del Shop\nbank = Bank()", "Bank"),  # nor the class of an object
        ("same = Shop\ndel Bank", "Shop"),  # two names for one
    ],
)
def test_of_several_the_one_that_can_be_meant_is_taken(more: str, made: str | None) -> None:
    Path("several_of_test.py").write_text(f"{SEVERAL}\n{more}\n")
    if made is not None:
        assert kind("several_of_test.py") == made
        return
    with pytest.raises(vf.ConfigError) as caught:
        vf.make("several_of_test.py")
    said = "there are 2 environments in several_of_test.py; name one of them: "
    assert said + "several_of_test.py:Shop, several_of_test.py:Bank" in str(caught.value)


def test_a_name_is_a_class_a_function_an_object_or_registered() -> None:
    Path("several_of_test.py").write_text(
        f"{SEVERAL}\nshop = Shop()\nvf.register('bank-of-test', Bank)\n"
    )
    assert kind("several_of_test.py:Bank") == "Bank"
    assert kind("several_of_test.py:bank-of-test") == "Bank"
    assert type(vf.make("several_of_test.py:build", size=1)).__name__ == "Shop"
    one, two = (vf.make("several_of_test.py:shop") for _ in range(2))
    assert type(one).__name__ == "Shop"
    assert one is not two


@pytest.mark.parametrize(
    ("id", "words"),
    [
        ("several_of_test.py:Shopp", "no 'Shopp' in .*Did you mean 'Shop'.*: Base, Shop, Bank"),
        ("several_of_test.py:NUMBER", "NUMBER in .* is not an environment.*but int"),
        ("severl_of_test.py", "there is no file .*/severl_of_test.py. Did you mean 'several_of_te"),
        ("no/such/folder.py", "there is no file .*/no/such/folder.py"),
        ("syntax_of_test.py", r'importing .* failed:\n  File ".*syntax_of_test.py", line 2\n'),
        ("lacks_of_test.py", r'(?s)failed:.*lacks_of_test.py", line 3.*No module named \'nobody'),
        ("empty_of_test.py", "no environment in empty_of_test.py. Write a class that inherits"),
        ("random.py", "'random' is the name of another module; rename random.py"),
        ("a.b.py", "for the dot in its name; rename"),
        ("several_of_test", "no environment 'several_of_test'. .* write ./several_of_test.py"),
        ("nobody_has.this:Shop", "there is no module 'nobody_has', and no environment of that"),
        ("calculater:Shop", "no environment 'calculater'. Did you mean 'calculator'"),
    ],
)
def test_what_cannot_be_found_is_reported(id: str, words: str) -> None:
    Path("several_of_test.py").write_text(SEVERAL)
    Path("syntax_of_test.py").write_text("import vf\nclass Shop(vf.Environment)\n    pass\n")
    Path("lacks_of_test.py").write_text("import vf\n\nimport nobody_has_this\n")
    for name in ("empty_of_test.py", "random.py", "a.b.py"):
        Path(name).touch()
    with pytest.raises(vf.ConfigError) as caught:
        vf.make(id)
    assert re.search(words, str(caught.value)), caught.value


def test_two_files_of_one_name_are_not_taken_for_each_other(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "shop_of_test.py").write_text(ONE)
    assert kind("a/shop_of_test.py") == "Shop"
    with pytest.raises(vf.ConfigError, match=r"that of another module, .*a/shop_of_test.py; ren"):
        vf.make("b/shop_of_test.py")


def test_a_registered_name_comes_before_a_module(tmp_path: Path) -> None:
    Path("calculator.py").write_text(ONE)
    assert kind("calculator") == "Calculator"
    assert kind("./calculator.py") == "Shop"


def test_the_path_of_a_file_is_made_absolute_and_nothing_else_is() -> None:
    assert absolute("envs/a.py:A", Path("/runs")) == "/runs/envs/a.py:A"
    assert absolute("../a.py", Path("/runs")) == "/a.py"
    assert absolute("/b/a.py", Path("/runs")) == "/b/a.py"
    for other in ("calculator", "gym:FrozenLake-v1", "pkg.module:A"):
        assert absolute(other, Path("/runs")) == other


def test_a_scorer_in_a_file_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "bound_of_test.py").write_text(
        "import os\nimport vf\n\n\n@vf.cpu_bound\ndef apart(trace):\n"
        "    return float(os.getpid() != int(trace.task.answer))\n\n\n"
        "class Bound(vf.Environment):\n    rubric = vf.Rubric(apart)\n"
    )
    asyncio.run(run_in_process(os.getpid))  # that process is there before the file is
    task = vf.Task("t", "p", answer=os.getpid())
    environment = vf.make("elsewhere/bound_of_test.py")
    trace = asyncio.run(vf.rollout(environment, task, vf.ScriptedModel(["x"])))
    assert trace.error is None, trace.error
    assert trace.reward == 1.0
