"""What the doctor finds on machines that are not this one, with the programs they would have."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from vf.inference.settings import VllmSettings
from vf.trainer.installed_packages import check_packages, check_vllm, unmet
from vf.trainer.machine import (
    Gpu,
    check_build,
    check_disk,
    check_gpus,
    check_machine,
    check_shared_memory,
    visible_gpus,
)

L4 = Gpu("NVIDIA L4", 23034 * 2**20, 22563 * 2**20, "535.129.03")


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_the_driver_is_asked_for_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = "NVIDIA L4, 23034, 22563, 535.129.03"
    program(tmp_path / "nvidia-smi", f"echo '{line}'; echo '{line}'; echo 'No devices'")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert visible_gpus() == [L4, L4]


def test_a_driver_that_fails_shows_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "nvidia-smi", "echo 'cannot talk to the driver'; exit 9")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert visible_gpus() == []


def test_every_gpu_has_a_line() -> None:
    first, second, *_ = check_gpus([L4, L4])
    assert (first.name, second.name) == ("GPU 0", "GPU 1")
    assert first.finding == "NVIDIA L4, 22.0 GiB free of 22.5 GiB, driver 535.129.03"


@pytest.mark.parametrize(
    ("cuda", "count", "visible", "level", "said", "fix"),
    [
        ("12.8", 1, "0", "ok", "2.13.0", ""),
        (None, 0, "0", "missing", "cannot use the GPU", "install torch==2.13.0"),
        ("13.0", 0, "0", "missing", "a driver of at least 580; 535.129.03", "update"),
        ("12.8", 0, "", "missing", "hides all GPUs", "unset CUDA_VISIBLE_DEVICES"),
        ("12.8", 0, "0", "missing", "finds no GPU", "torch.cuda.init()"),
    ],
)
def test_a_build_that_does_not_see_the_gpu_is_explained(
    cuda: str | None,
    count: int,
    visible: str,
    level: str,
    said: str,
    fix: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = check_build("2.13.0", cuda, [L4], count, "2.13.0+cpu")
    assert found.level == level
    assert said in found.finding
    assert fix.rpartition(" ")[2] in found.fix


def test_little_shared_memory_is_a_note() -> None:
    docker, usual = check_shared_memory(2**26), check_shared_memory(2**33)
    assert (docker.level, usual.level) == ("note", "ok")
    assert "--shm-size" in docker.fix


def test_a_disk_without_room_for_checkpoints_is_missing(tmp_path: Path) -> None:
    place = tmp_path / "not" / "there" / "yet"
    assert check_disk(place, 1).level == "ok"
    found = check_disk(place, 2**60)
    assert (found.level, "save_total_limit" in found.fix) == ("missing", True)


def test_this_machine_has_what_the_tests_need() -> None:
    assert check_packages(needed=True).level == "ok"
    assert {check.name for check in check_machine()} >= {"Python", "CPU"}


def test_versions_are_compared_with_what_is_required() -> None:
    needed = [
        "transformers>=5.20,<6",
        "peft>=0.18 ; extra == 'train'",
        "torch==2.12.0; extra == 'x'",
    ]
    assert unmet(needed, {"transformers": "5.23.0"}) == []
    assert unmet(needed, {"transformers": "5.19.0"}, extra="train") == [
        "transformers 5.19.0 does not fit transformers<6,>=5.20",
        "peft is missing",
    ]


def test_what_is_missing_is_named_without_packaging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "packaging.requirements", None)
    needed = ["torch>=2.9; extra == 'train'", 'tyro[x] ; extra == "docs"', "jinja2>=3.1"]
    versions = {"jinja2": "3.0"}
    assert unmet(needed, versions, extra="train") == ["torch is missing"]
    monkeypatch.setattr("vf.trainer.installed_packages.installed", lambda: versions)
    found = check_packages(needed=True)
    assert "torch is missing; transformers is missing" in found.finding
    assert (found.level, found.fix) == ("missing", "pip install 'vf-rl[train]'")


def interpreter(folder: Path, **requires: list[str]) -> str:
    """Write a Python that has packages: their metadata, by name, with what they require."""
    site = folder / "site"
    for release, needed in requires.items():
        name, _, version = release.partition("__")
        info = site / f"{name}-{version.replace('_', '.')}.dist-info"
        info.mkdir(parents=True)
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version.replace('_', '.')}"]
        lines += [f"Requires-Dist: {each}" for each in needed]
        (info / "METADATA").write_text("\n".join(lines) + "\n")
    script = program(folder / "python", f'PYTHONPATH={site} exec {sys.executable} -S "$@"')
    return str(script)


def test_vllm_that_does_not_fit_the_packages_beside_it_is_named(tmp_path: Path) -> None:
    python = interpreter(tmp_path, vllm__0_32_0=["transformers<5.20"], transformers__5_23_0=[])
    found = check_vllm(VllmSettings(python=python), needed=True)
    assert found.level == "missing"
    assert "vllm 0.32.0 with transformers 5.23.0" in found.finding
    assert "transformers 5.23.0 does not fit transformers<5.20" in found.finding
    assert found.fix == f"{python} -m pip check"


def test_a_vllm_that_is_too_old_is_named(tmp_path: Path) -> None:
    python = interpreter(tmp_path, vllm__0_9_1=[])
    assert (
        "vllm 0.9.1 does not fit vllm"
        in check_vllm(VllmSettings(python=python), needed=True).finding
    )


def test_vllm_that_fits_is_fine(tmp_path: Path) -> None:
    python = interpreter(tmp_path, vllm__0_32_0=["transformers<6"], transformers__5_19_0=[])
    found = check_vllm(VllmSettings(python=python), needed=True)
    assert (found.level, found.fix) == ("ok", "")


def test_an_interpreter_without_vllm_is_named(tmp_path: Path) -> None:
    python = interpreter(tmp_path)
    found = check_vllm(VllmSettings(python=python), needed=True)
    assert (found.level, found.fix) == ("missing", f"{python} -m pip install vllm")
