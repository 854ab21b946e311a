"""Which of a policy's changes are undone before the tests run, and which are its business."""

from __future__ import annotations

from typing import Literal

import pytest

from vf.bridges.harbor.protected import Guarded, Protected
from vf.sandbox.audit import Change

Kind = Literal["added", "changed", "deleted"]

IMAGE = Guarded(
    path=["/opt/venv/bin", "/usr/local/bin", "/usr/bin", "/bin"],
    programs=["sh", "python3", "pytest", "cmp"],
    libraries=["libc.so.6"],
    modules=["json", "pytest", "numpy"],
)


def found(kind: Kind, path: str) -> Protected:
    return IMAGE.find([Change(kind, path)])


def changes(**paths: list[str]) -> list[Change]:
    return [Change(kind, path) for kind, each in paths.items() for path in each]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "path",
    [
        "/bin/sh",
        "/usr/bin/cmp",
        "/opt/venv/bin/pytest",
        "/opt/venv/pyvenv.cfg",
        "/opt/venv/lib/python3.11/site-packages/numpy/__init__.py",
        "/usr/lib/python3.11/json/__init__.py",
        "/lib/x86_64-linux-gnu/libc.so.6",
        "/lib64/ld-linux-x86-64.so.2",
        "/etc/ld.so.cache",
        "/etc/profile",
        "/root/.bashrc",
    ],
)
@pytest.mark.parametrize("kind", ["changed", "deleted"])
def test_what_the_image_runs_and_loads_is_put_back(kind: Kind, path: str) -> None:
    assert found(kind, path).of_image == (path,)
    assert not found(kind, path).added


@pytest.mark.parametrize(
    "path",
    [
        "/etc/ld.so.preload",
        "/etc/ld-musl-x86_64.path",
        "/etc/profile.d/evil.sh",
        "/root/.bash_profile",
        "/home/agent/.profile",
        "/usr/lib/python3/dist-packages/sitecustomize.py",
        "/root/.local/lib/python3.11/site-packages/usercustomize.py",
        "/app/sitecustomize.py",
        "/usr/local/lib/python3.11/dist-packages/evil.pth",
        "/usr/local/lib/python3.11/dist-packages/pytest/__init__.py",
        "/root/.local/lib/python3.11/site-packages/json.py",
        "/usr/lib/python3.11/pytest.py",
        "/usr/lib/python3.11/__pycache__/json.cpython-311.pyc",
        "/usr/local/bin/python3",
        "/usr/local/bin/cmp",
        "/usr/local/lib/libc.so.6",
        "/lib/x86_64-linux-gnu/glibc-hwcaps/x86-64-v3/libm.so.6",
        "/conftest.py",
        "/pytest.ini",
    ],
)
def test_what_would_be_run_or_loaded_unasked_is_removed(path: str) -> None:
    assert found("added", path) == Protected(added=(path,))


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("changed", "/app/main.py"),
        ("deleted", "/app/bin/sh"),
        ("added", "/app/conftest.py"),
        ("added", "/app/json.py"),
        ("added", "/usr/local/bin/my-tool"),
        ("added", "/usr/local/lib/libmine.so"),
        ("added", "/usr/local/lib/python3.11/dist-packages/requests/__init__.py"),
        ("changed", "/etc/passwd"),
        ("added", "/var/lib/dpkg/info/x"),
        ("added", "/root/.gitconfig"),
    ],
)
def test_all_else_is_the_tasks_business(kind: Kind, path: str) -> None:
    assert not found(kind, path)


def test_a_folder_in_which_something_changed_is_not_itself_put_back() -> None:
    under = ["/usr", "/usr/local", "/usr/local/bin"]
    done = changes(changed=under, added=["/usr/local/bin/mine"])
    assert not IMAGE.find(done)
    assert IMAGE.doubtful(done) == []


def test_what_may_stand_in_a_folders_place_is_looked_into() -> None:
    done = changes(changed=["/usr", "/usr/lib", "/root", "/app", "/etc"], added=["/etc/x"])
    assert IMAGE.doubtful(done) == ["/usr/lib", "/root"]
    assert IMAGE.find(done, ["/usr/lib", "/root"]) == Protected()
    assert IMAGE.find(done).changed == ("/root", "/usr/lib")


@pytest.mark.parametrize(
    "path",
    [
        "/root/.local/lib/python3.11",
        "/usr/local/lib/python3.11/site-packages",
        "/etc/profile.d",
        "/opt/venv/bin",
    ],
)
def test_an_added_place_with_nothing_in_it_may_be_a_link(path: str) -> None:
    assert found("added", path) == Protected(added=(path,))
    full = changes(added=[path, f"{path}/harmless"])
    assert path not in IMAGE.find(full).added
