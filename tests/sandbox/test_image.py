"""Images: packages in a layer of their own, and what cannot be built is explained."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.parts import require
from vf.runtime.errors import ConfigError
from vf.sandbox.container.docker_engine import Engine, ImageMissing, ImageUnfit
from vf.sandbox.container.docker_sandbox import DockerSandbox
from vf.sandbox.container.doctor import check_engine
from vf.sandbox.container.hardening import DEFAULT_IMAGE, Profile
from vf.sandbox.container.image import build, debootstrap, inspected, with_packages
from vf.sandbox.container.opening import open_container

TAG = "vf-test-image:1"


@pytest.fixture
def wheel(tmp_path: Path) -> str:
    """A package as PyPI has them, with a name that nobody uses."""
    path = tmp_path / "vf_test_wheel-1.0-py3-none-any.whl"
    about = "vf_test_wheel-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("vf_test_wheel.py", "ANSWER = 42\n")
        file.writestr(
            f"{about}/METADATA", "Metadata-Version: 2.1\nName: vf-test-wheel\nVersion: 1.0\n"
        )
        file.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{about}/RECORD", "")
    return str(path)


def layers(engine: Engine) -> set[str]:
    """Return the tags of images with packages; only the test that has ``scratch`` makes any."""
    tags = {tag for item in engine.call_now("images") for tag in item["RepoTags"] or ()}
    return {tag for tag in tags if tag.startswith("vf-sandbox:with-")}


def test_packages_are_there_and_cannot_be_changed(
    scratch: Engine, profile: Profile, wheel: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with open_container(replace(profile, packages=[wheel])) as sandbox:
            told = await sandbox.python("import vf_test_wheel as w; w.ANSWER, w.__file__")
            assert told.stdout.startswith("(42, "), told
            changed = await sandbox.exec(
                "echo >> $(python3 -c 'import vf_test_wheel as w; print(w.__file__)')"
            )
            assert not changed.ok
            assert "Read-only file system" in changed.stderr or "denied" in changed.stderr
        async with open_container(profile) as sandbox:
            assert not (await sandbox.python("import vf_test_wheel")).ok

    asyncio.run(run())
    assert "sandboxes get additional packages" in caplog.text


def test_a_dry_run_builds_packages_and_the_same_ones_are_built_once(
    scratch: Engine, profile: Profile, wheel: str
) -> None:
    before = layers(scratch)
    check_engine(replace(profile, packages=[wheel]))
    (made,) = layers(scratch) - before
    born = scratch.call_now("inspect_image", made)["Id"]
    assert with_packages(scratch, DEFAULT_IMAGE, [wheel]) == made
    assert scratch.call_now("inspect_image", made)["Id"] == born
    assert with_packages(scratch, DEFAULT_IMAGE, []) == DEFAULT_IMAGE
    left = [item["Image"] for item in scratch.call_now("containers", all=True)]
    assert made not in left


def test_a_profile_whose_packages_are_not_built_is_refused(
    engine: Engine, profile: Profile, wheel: str
) -> None:
    with pytest.raises(ValueError, match="prepare"):
        asyncio.run(DockerSandbox.create(engine, replace(profile, packages=[wheel])))
    with pytest.raises(TypeError, match="list of names"):
        replace(profile, packages="numpy")


@pytest.mark.slow
def test_build_starts_from_any_image_and_is_done_once(scratch: Engine, wheel: str) -> None:
    assert build(scratch, tag=TAG, base=DEFAULT_IMAGE, packages=[wheel]) == TAG
    born = scratch.call_now("inspect_image", TAG)["Id"]
    build(scratch, tag=TAG, base=DEFAULT_IMAGE, packages=[wheel])
    assert scratch.call_now("inspect_image", TAG)["Id"] == born
    build(scratch, tag=TAG, base=DEFAULT_IMAGE)
    assert scratch.call_now("inspect_image", TAG)["Id"] != born

    async def run() -> str:
        async with open_container(Profile(image=TAG)) as sandbox:
            return (await sandbox.exec("echo built")).stdout

    assert asyncio.run(run()) == "built\n"


@pytest.mark.parametrize(
    ("package", "why"),
    [
        ("/nowhere/none-1.0-py3-none-any.whl", "cannot be had"),
        ("--index-url=http://127.0.0.1:1", "not the name of a package"),
        ("two names", "not the name of a package"),
        ("semi;colon", "not the name of a package"),
    ],
)
def test_packages_that_cannot_be_had_are_explained(scratch: Engine, package: str, why: str) -> None:
    before = layers(scratch)
    with pytest.raises(ConfigError, match=why):
        with_packages(scratch, DEFAULT_IMAGE, [package])
    assert layers(scratch) == before


def test_bases_that_cannot_be_used_are_explained(scratch: Engine, wheel: str) -> None:
    with pytest.raises(ImageMissing, match="cannot be fetched"):
        build(scratch, tag=TAG, base="127.0.0.1:1/none:1")
    with pytest.raises(ImageMissing, match="vf-rl sandbox build"):
        with_packages(scratch, "vf-test-none:1", [wheel])
    empty = io.BytesIO()
    with tarfile.open(fileobj=empty, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("nothing"), io.BytesIO())
    scratch.call_now(
        "import_image_from_data", empty.getvalue(), repository="vf-test-empty", tag="2"
    )
    with pytest.raises(ImageUnfit, match="no python3"):
        with_packages(scratch, "vf-test-empty:2", [wheel])
    with pytest.raises(ImageUnfit, match="no python3"):
        build(scratch, tag=TAG, base="vf-test-empty:2")
    assert not inspected(scratch, TAG)


def test_debootstrap_says_what_it_needs(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        with pytest.raises(ConfigError, match="apt-get install debootstrap"):
            debootstrap(engine, TAG)
    require("debootstrap")
    with monkeypatch.context() as patch:
        patch.setattr("os.geteuid", lambda: 1000)
        with pytest.raises(ConfigError, match="sudo vf-rl sandbox build"):
            debootstrap(engine, TAG)
    if os.geteuid() == 0:
        with pytest.raises(ConfigError, match="no-such-suite"):
            debootstrap(engine, TAG, "no-such-suite")
    assert not inspected(engine, TAG)
