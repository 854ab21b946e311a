"""Trees of files as archives: what is copied, what is refused, and what differs."""

from __future__ import annotations

import io
import math
import os
import tarfile
from collections.abc import Collection
from typing import Any

import pytest

from vf.sandbox import trees
from vf.sandbox.trees import Tree, copy_tree, differences, read_pieces, reading, writing

NOT_UTF8 = os.fsdecode(b"\xff.pth")


def archive(*members: tuple[str, bytes, Any]) -> bytes:
    """Make an archive of names, kinds, and contents or targets."""
    data = io.BytesIO()
    with writing(data) as file:
        for name, kind, content in members:
            info = tarfile.TarInfo(name)
            info.type, info.uid = kind, 7
            if isinstance(content, bytes):
                info.size = len(content)
            else:
                info.linkname = content or ""
            file.addfile(info, io.BytesIO(content) if isinstance(content, bytes) else None)
    return data.getvalue()


def read(data: bytes, under: str = "") -> Tree:
    pieces = (data[at : at + 700] for at in range(0, len(data), 700))
    return read_pieces(pieces, under=under, max_bytes=2**20)


def copied(
    data: bytes, wanted: Collection[str], *, whole: bool, max_bytes: float = math.inf
) -> Tree:
    """Copy some paths, and return what the copy has."""
    made = io.BytesIO()
    with reading(io.BytesIO(data)) as source, writing(made) as to:
        copy_tree(source, to, selected=wanted.__contains__, whole=whole, max_bytes=max_bytes)
    return read(made.getvalue())


WORK = archive(
    ("app", tarfile.DIRTYPE, None),
    ("app/a", tarfile.REGTYPE, b"one"),
    ("app/" + NOT_UTF8, tarfile.REGTYPE, b"x" * 5000),
    ("app/link", tarfile.SYMTYPE, "/etc/" + NOT_UTF8),
    ("app/same", tarfile.LNKTYPE, "app/a"),
    ("app/pipe", tarfile.FIFOTYPE, None),
)


def test_every_name_and_kind_is_read_by_its_path() -> None:
    found = read(WORK, under="/srv")
    names = ("", "/a", "/link", f"/{NOT_UTF8}", "/same", "/pipe")
    assert set(found) == {f"/srv/app{name}" for name in names}
    assert found["/srv/app/link"].content == f"/etc/{NOT_UTF8}"
    assert found["/srv/app/same"] == found["/srv/app/a"]
    assert found["/srv/app/a"].uid == 7


def test_a_copy_has_the_same_content() -> None:
    found = read(WORK)
    assert copied(WORK, found, whole=False) == copied(WORK, found, whole=True) == found
    assert copied(WORK, ["/app/same"], whole=True) == {"/app/same": found["/app/same"]}


@pytest.mark.parametrize(
    "members",
    [
        [("a/../b", tarfile.REGTYPE, b"")],
        [("..", tarfile.DIRTYPE, None)],
        [("a", tarfile.SYMTYPE, "/usr/bin"), ("a/python3", tarfile.REGTYPE, b"")],
        [("a", tarfile.REGTYPE, b""), ("a", tarfile.SYMTYPE, "/usr")],
        [("a", tarfile.DIRTYPE, None), ("b/c", tarfile.REGTYPE, b"")],
        [("a", tarfile.LNKTYPE, "etc/shadow")],
        [("a", tarfile.SYMTYPE, "/etc/shadow"), ("b", tarfile.LNKTYPE, "a")],
    ],
)
def test_what_no_tree_has_is_refused(members: list[Any]) -> None:
    with pytest.raises(ValueError, match=r"not a path|not there|not a file"):
        read(archive(*members))


def test_more_than_may_be_copied_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="more bytes"):
        read_pieces(iter([WORK]), under="", max_bytes=len(WORK) - 1)
    named = f"/app/{NOT_UTF8}"
    assert copied(WORK, [named], whole=True, max_bytes=5000).keys() == {named}
    with pytest.raises(ValueError, match="more than 5000 bytes"):
        copied(WORK, ["/app/a", named], whole=True, max_bytes=5000)
    monkeypatch.setattr(trees, "MOST_LINKED", 2)
    with pytest.raises(ValueError, match="hard links"):
        copied(WORK, ["/app/same"], whole=True)
    monkeypatch.setattr(trees, "MOST_ENTRIES", 3)
    with pytest.raises(ValueError, match="more than 3 files"):
        read(WORK)


def test_differences_are_those_of_the_content_and_of_the_kind() -> None:
    image = read(
        archive(
            ("bin", tarfile.DIRTYPE, None),
            ("bin/grep", tarfile.REGTYPE, b"good"),
            ("bin/cat", tarfile.REGTYPE, b"cat"),
            ("lib", tarfile.DIRTYPE, None),
            ("lib/json", tarfile.DIRTYPE, None),
            ("lib/json/x", tarfile.REGTYPE, b"x"),
            ("gone", tarfile.REGTYPE, b""),
        )
    )
    left = read(
        archive(
            ("bin", tarfile.DIRTYPE, None),
            ("bin/grep", tarfile.REGTYPE, b"evil"),  # of the same size and time
            ("bin/cat", tarfile.REGTYPE, b"cat"),
            ("lib", tarfile.SYMTYPE, "/evil"),
            ("evil", tarfile.DIRTYPE, None),
            ("evil/" + NOT_UTF8, tarfile.REGTYPE, b""),
        )
    )
    gone, missing = differences(left, image)
    assert gone == {"/bin/grep", "/lib", "/evil"}
    assert set(missing) == {"/bin/grep", "/lib", "/lib/json", "/lib/json/x", "/gone"}
    assert differences(image, image) == (set(), {})
