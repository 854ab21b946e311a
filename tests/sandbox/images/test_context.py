"""What an image is built from: the same content is the same image, and any change another one."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from vf.runtime.errors import ConfigError
from vf.sandbox.images.context import check_build, read_context, write_context
from vf.sandbox.spec import Build

FILES = {"Dockerfile": "FROM a\nCOPY . /app\n", "app/main.py": "print(1)\n", "run.sh": "true\n"}


def folder(place: Path, files: dict[str, str] = FILES) -> Path:
    for name, text in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    return place


def digest(place: Path, **options: object) -> str:
    return read_context(Build(place, **options)).digest  # type: ignore[arg-type]


def archived(place: Path) -> list[str]:
    file = io.BytesIO()
    write_context(read_context(Build(place)), file)
    file.seek(0)
    with tarfile.open(fileobj=file) as archive:
        return archive.getnames()


def test_the_same_content_elsewhere_and_later_has_the_same_digest(tmp_path: Path) -> None:
    first, second = folder(tmp_path / "one"), folder(tmp_path / "two")
    os.utime(second / "run.sh", (1, 1))
    assert digest(first) == digest(second)


CHANGES: dict[str, Callable[[Path], object]] = {
    "text": lambda place: (place / "run.sh").write_text("false\n"),
    "mode": lambda place: (place / "run.sh").chmod(0o755),
    "another file": lambda place: (place / "new").touch(),
    "an empty folder": lambda place: (place / "new").mkdir(),
    "a link": lambda place: (place / "new").symlink_to("run.sh"),
    "a name": lambda place: (place / "run.sh").rename(place / "go.sh"),
    "the Dockerfile": lambda place: (place / "Dockerfile").write_text("FROM b\n"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_any_change_is_another_digest(change: str, tmp_path: Path) -> None:
    place = folder(tmp_path)
    before = digest(place)
    CHANGES[change](place)
    assert digest(place) != before


def test_arguments_and_the_stage_are_part_of_it(tmp_path: Path) -> None:
    place = folder(tmp_path, {"Dockerfile": "FROM a AS one\nFROM one\n"})
    found = {digest(place), digest(place, args={"A": "1"}), digest(place, target="one")}
    assert len(found) == 3


def test_what_dockerignore_names_is_neither_read_nor_sent(tmp_path: Path) -> None:
    place = folder(tmp_path, FILES | {".dockerignore": "# big\n*.log\ndata\n!data/keep\n"})
    before = digest(place)
    folder(place, {"a.log": "x", "data/big": "x"})
    assert digest(place) == before
    assert set(archived(place)) == {".dockerignore", "Dockerfile", "app", "app/main.py", "run.sh"}
    folder(place, {"data/keep": "x"})
    assert digest(place) != before


def test_a_dockerfile_that_is_ignored_is_sent(tmp_path: Path) -> None:
    place = folder(tmp_path, FILES | {".dockerignore": "*\n"})
    assert "Dockerfile" in archived(place)


def test_files_that_change_while_they_are_sent_are_noticed(tmp_path: Path) -> None:
    context = read_context(Build(folder(tmp_path)))
    (tmp_path / "run.sh").write_text("changed")
    with pytest.raises(OSError, match="changed while they were read"):
        write_context(context, io.BytesIO())


@pytest.mark.parametrize(
    ("text", "target", "images", "base"),
    [
        ("FROM a:1\n", None, ["a:1"], "a:1"),
        ("# syntax=x\nFROM --platform=linux/amd64 a\nRUN b\n", None, ["a"], "a"),
        ("FROM a AS one\nFROM b\nCOPY --from=one /x /x\n", None, ["a", "b"], "b"),
        ("FROM a AS One\nFROM one AS two\nFROM b\n", "two", ["a", "b"], "a"),
        ("FROM a AS one\nFROM b\n", "0", ["a", "b"], "a"),
        ("FROM a\nCOPY --chown=1 --from=c:2 /x /x\nCOPY --from=0 y z\n", None, ["a", "c:2"], "a"),
        ("ARG V=3\nFROM a:${V}\n", None, ["a:3"], "a:3"),
        ("ARG V=3\nARG W=$V\nFROM a:$W-slim\n", None, ["a:3-slim"], "a:3-slim"),
        ("ARG N\nFROM ${N:-a}\n", None, ["a"], "a"),
        ("FROM $UNKNOWN\n", None, [], None),
        ("FROM scratch\nCOPY x /\n", None, [], None),
        ("FROM \\\n  # why\n  a\n", None, ["a"], "a"),
        ("ARG A\nFROM a:$A\n", None, ["a:given"], "a:given"),
        ("", None, [], None),
    ],
)
def test_the_images_that_a_dockerfile_names_are_seen(
    text: str, target: str | None, images: list[str], base: str | None, tmp_path: Path
) -> None:
    args = {"A": "given"} if "$A" in text else {}
    context = read_context(Build(folder(tmp_path, {"Dockerfile": text}), target=target, args=args))
    assert list(context.images) == images
    assert context.base == base


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"folder": "no"}, "sandbox_spec.build.folder: there is no folder"),
        ({"dockerfile": "Other"}, "sandbox_spec.build.dockerfile: there is no file 'Other'"),
        ({"dockerfile": "../Dockerfile"}, "build.dockerfile: there is no file"),
        ({"target": "three"}, "build.target = 'three'.* has no such stage, only one, two"),
    ],
)
def test_what_is_not_there_is_named(options: dict[str, str], said: str, tmp_path: Path) -> None:
    place = folder(tmp_path / "in", {"Dockerfile": "FROM a AS one\nFROM one AS two\n"})
    folder(tmp_path)
    build = Build(tmp_path / options.pop("folder", "in"), **options)  # type: ignore[arg-type]
    assert place.is_dir()
    with pytest.raises(ConfigError, match=said):
        read_context(build)
    if "target" not in options:
        with pytest.raises(ConfigError, match=said):
            check_build(build)
