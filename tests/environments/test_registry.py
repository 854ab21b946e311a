"""Environments by name."""

from __future__ import annotations

import importlib
import os
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import vf
from vf.environments import registry
from vf.environments.registry import is_registered, registered

# Environments that are one of many, by the argument that says which.
FIRST = {
    "gym": "gymnasium_id",
    "harbor": "tasks",
    "openenv": "url",
    "pettingzoo": "pettingzoo_id",
    "reasoning-gym": "task",
    "swe": "data",
    "textarena": "game",
    "verifiers": "environment_id",
}


@pytest.fixture(autouse=True)
def _own_registrations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module outside the library with an environment in it, on sys.path but not loaded."""
    (tmp_path / "vf_test_shop.py").write_text(
        "import vf\nclass Shop(vf.Environment):\n    pass\nNUMBER = 3\n"
    )
    (tmp_path / "vf_test_broken.py").write_text("import a_module_that_nobody_has\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "vf_test_shop"
    sys.modules.pop("vf_test_shop", None)


class Shop(vf.Environment):
    def __init__(self, size: int = 1, colour: str = "red") -> None:
        self.size, self.colour = size, colour


def test_a_registered_class_is_made_with_its_arguments_and_its_id() -> None:
    vf.register("shop", Shop)
    made = vf.make("shop", size=3)
    assert isinstance(made, Shop)
    assert (made.size, made.colour, made.id) == (3, "red", "shop")
    assert "shop" in registered()


def test_a_function_can_be_a_factory() -> None:
    def build(size: int) -> Shop:
        return Shop(size * 2)

    vf.register("shop", build)
    made = vf.make("shop", size=3)
    assert isinstance(made, Shop)
    assert made.size == 6


def test_an_unknown_name_shows_the_nearest_and_all() -> None:
    vf.register("shop", Shop)
    with pytest.raises(vf.ConfigError) as caught:
        vf.make("calculater")
    assert "no environment 'calculater'" in str(caught.value)
    assert "Did you mean 'calculator'?" in str(caught.value)
    for name in registered():
        assert name in str(caught.value)


def sized(size: int | float, top: int | None = None) -> Shop:
    return Shop(round(size) + round(0 if top is None else top))


@pytest.mark.parametrize(
    ("id", "kwargs", "words"),
    [
        ("shop", {"siez": 3}, "'shop'.*'siez'.*Did you mean 'size'.*It takes: size, colour"),
        ("shop", {"zzz": 3}, "it takes no argument 'zzz'.*It takes: size, colour"),
        (
            "painted",
            {},
            "argument: 'colour'. Give it: --args '{\"colour\": \"...\"}', or args = { col",
        ),
        ("calculator", {"max_operations": "2"}, "max_operations must be a whole number, not '2'"),
        ("sized", {"size": None}, "size must be a whole number or a number, not None"),
        ("sized", {"size": 1.0, "top": []}, "top must be a whole number, not \\[\\]"),
        ("shop:3", {}, "'shop:3': nothing goes after the colon; write 'shop'"),
        ("painted:", {}, "'painted:': after the colon goes its colour"),
        ("painted:blue", {"colour": "red"}, "'painted:blue': colour is given twice"),
        ("paintd:blue", {}, "no environment 'paintd'.*Did you mean 'painted'"),
        ("wrong", {}, "'wrong' gave a dict, not a"),
        ("calculator", {"max_operations": 9}, "max_operations must be 1 to 4"),  # its own error
    ],
)
def test_what_cannot_be_made_is_reported(id: str, kwargs: Any, words: str) -> None:
    wrong: Any = dict
    vf.register("shop", Shop)
    vf.register("painted", lambda colour: Shop(1, colour))
    vf.register("sized", sized)
    vf.register("wrong", lambda: wrong())
    with pytest.raises(vf.ConfigError, match=words):
        vf.make(id, **kwargs)


def test_a_name_is_registered_once_and_has_no_colon() -> None:
    vf.register("shop", Shop)
    vf.register("shop", Shop)
    with pytest.raises(vf.ConfigError, match="'shop' is registered already"):
        vf.register("shop", vf.Environment)
    with pytest.raises(vf.ConfigError, match="a name has no colon"):
        vf.register("shop:red", Shop)


def test_what_follows_a_colon_is_the_argument_that_it_cannot_be_made_without() -> None:
    def build(colour: str, size: int = 1) -> Shop:
        return Shop(size, colour)

    vf.register("painted", build)
    made = vf.make("painted:blue:ish", size=2)
    assert isinstance(made, Shop)
    assert (made.colour, made.size, made.id) == ("blue:ish", 2, "painted:blue:ish")


def test_a_module_is_imported_when_its_environment_is_first_made(module: str) -> None:
    vf.register("shop", f"{module}:Shop")
    assert "shop" in registered()
    assert module not in sys.modules
    assert type(vf.make("shop")).__name__ == "Shop"
    assert module in sys.modules


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("vf_test_shop", "must be of the form 'module:name'"),
        ("vf_test_shop:", "must be of the form 'module:name'"),
        ("vf_test_shop:Shopp", "has no 'Shopp'. Did you mean 'Shop'.* environments: Shop; correct"),
        ("vf_test_gone:Shop", "there is no module 'vf_test_gone'; install it, or correct"),
        (":Shop", "must be of the form 'module:name'"),
        ("vf_test_broken:Shop", "cannot load .*a_module_that_nobody_has"),
        ("vf_test_shop:NUMBER", "not a class or function"),
    ],
)
@pytest.mark.usefixtures("module")
def test_what_cannot_be_loaded_is_a_config_error(target: str, words: str) -> None:
    vf.register("shop", target)
    with pytest.raises(vf.ConfigError, match=f"(?s)environment 'shop': .*{words}"):
        vf.make("shop")


@pytest.mark.slow
def test_installed_environments_are_found_by_their_entry_points() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert registered() == sorted(project["project"]["entry-points"]["vf.environments"])
    for name in registered():
        if name in ("program", "wiki-qa"):  # works with files that the user has
            with pytest.raises(vf.ConfigError, match=name):
                vf.make(name)
            continue
        if name in FIRST:
            with pytest.raises(vf.ConfigError, match=f"argument: '{FIRST[name]}'"):
                vf.make(name)
            continue
        made = vf.make(name)
        assert made.id == name
        bundled = ("vf.environments.bundled.", "vf.bridges.harbor.")
        assert made.__module__.startswith(bundled)


def offer(folder: Path, package: str, id: str, value: str) -> None:
    """Write the metadata of an installed package that offers an environment."""
    info = folder / f"{package}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {package}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[vf.environments]\n{id} = {value}\n")


def test_one_name_offered_by_two_packages_is_an_error_naming_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("first", "second"):
        offer(tmp_path, package, "shop", f"{package}:Shop")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(vf.ConfigError, match=r"two installed .* 'shop': .*first.*second") as caught:
        vf.make("shop")
    assert "Uninstall one of them, or rename one in its pyproject.toml" in str(caught.value)


def test_a_package_that_is_installed_later_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    os.utime(tmp_path, (0, 0))  # its next change has another time, on a coarse clock too
    assert "later" not in registered()
    offer(tmp_path, "their-shop", "later", "their_shop:Shop")
    assert "later" in registered()


def test_the_metadata_of_packages_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    registered()
    monkeypatch.setattr("vf.environments.registry.entry_points", lambda **_: pytest.fail("again"))
    assert is_registered("calculator")
    assert vf.make("calculator").id == "calculator"


def test_a_name_registered_in_code_and_offered_by_a_package_is_an_error_naming_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(tmp_path, "their-shop", "shop", "their_shop:Shop")
    monkeypatch.syspath_prepend(tmp_path)
    vf.register("shop", Shop)
    with pytest.raises(vf.ConfigError, match=r"two .* 'shop': .*:Shop, .*their-shop \(their_shop"):
        vf.make("shop")


@pytest.mark.usefixtures("module")
def test_a_package_may_register_what_its_entry_point_offers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(tmp_path, "vf-test-shop", "shop", "vf_test_shop:Shop")
    module = importlib.import_module("vf_test_shop")
    vf.register("shop", module.Shop)
    assert type(vf.make("shop")) is module.Shop


BROKEN = {
    "raises": (
        "import json\n\n\ndef settings():\n    return json.loads('{')\n\n\nSETTINGS = settings()\n",
        [
            *(", line 8, in <module>", "SETTINGS = settings()", ", line 5, in settings"),
            *("return json.loads('{')", "JSONDecodeError: Expecting property name"),
        ],
    ),
    "syntax": ("import vf\nclass Shop(vf.Environment)\n    pass\n", ["line 2", "SyntaxError: "]),
    "lacks": ("from vf import Enviroment\n", ["line 1", "ImportError: cannot import name 'Envi"]),
    "exits": ("import sys\nsys.exit('no licence')\n", ["line 2", "SystemExit: no licence"]),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_package_that_fails_to_import_shows_its_authors_lines(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, words = BROKEN[how]
    package = tmp_path / f"vf_test_{how}"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "environment.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    offer(tmp_path, f"vf-test-{how}", "shop", f"vf_test_{how}.environment:Shop")
    with pytest.raises(vf.ConfigError) as caught:
        vf.make("shop")
    said = str(caught.value)
    assert "importing it failed" in said
    files = re.findall(r'File "(.*?)"', said)
    assert set(files) == {str(package / "environment.py")}
    for word in words:
        assert word in said


def test_a_wrong_entry_point_says_where_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(tmp_path, "their-shop", "shop", "vf.environments.bundled.calculator:Calculater")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(vf.ConfigError) as caught:
        vf.make("shop")
    assert "Did you mean 'Calculator'?" in str(caught.value)
    assert 'in pyproject.toml of their-shop, [project.entry-points."vf.en' in str(caught.value)
