"""Folders are copied into sandboxes as they are, bounded, and nothing from outside of them."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from tests.sandbox.local_box import inside
from vf.sandbox.folder import pack
from vf.sandbox.local import UnsafeLocalSandbox
from vf.sandbox.scripted_sandbox import ScriptedSandbox


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A program's folder."""
    root = tmp_path / "agent"
    (root / "src/.venv/lib").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "src/main.sh").write_text("#!/bin/sh\necho ran\n")
    (root / "src/main.sh").chmod(0o755)
    (root / "run").symlink_to("src/main.sh")
    (root / "src/.venv/lib/large").write_bytes(bytes(100))
    (root / "Grüße $(id).txt").write_bytes(b"\0\xff")
    return root


def test_what_cannot_be_copied_is_refused_before_anything_is(folder: Path) -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        with pytest.raises(NotADirectoryError, match="no-such-folder"):
            await box.upload("no-such-folder", "to")
        with pytest.raises(ValueError, match=r"more than max_bytes = 1000 bytes.*leave_out"):
            await box.upload(folder, "to", max_bytes=1000)
        for target in ("/etc/passwd", "../outside"):
            (folder / "link").symlink_to(target)
            with pytest.raises(ValueError, match="leads out"):
                await box.upload(folder, "to")
            (folder / "link").unlink()
        os.mkfifo(folder / "fifo")
        with pytest.raises(ValueError, match="fifo is neither"):
            await box.upload(folder, "to")
        (folder / "fifo").unlink()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / "socket"))
            with pytest.raises(ValueError, match="socket is neither"):
                await box.upload(folder, "to")
        assert (await box.exec("ls")).stdout == ""

    inside(body)


def test_a_sandbox_that_refuses_it_says_why(folder: Path) -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        await box.write_file("file", "text")
        with pytest.raises(FileExistsError, match="file"):
            await box.upload(folder, "file")
        await box.exec("mkdir -p to/run; touch sub")
        with pytest.raises(IsADirectoryError):
            await box.upload(folder, "to")
        await box.exec("rm -r to; mkdir to; touch to/src")
        with pytest.raises(NotADirectoryError):
            await box.upload(folder, "to")

    inside(body)


def test_links_in_the_sandbox_are_followed_to_folders_only(folder: Path) -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        await box.exec(
            "mkdir -p to real; ln -s ../real to/src; echo old > kept; ln -s ../kept to/run"
        )
        await box.upload(folder, "to")
        assert (await box.exec("./real/main.sh")).stdout == "ran\n"
        assert await box.read_file("kept") == b"old\n"

    inside(body)


def test_it_needs_nothing_of_the_image(folder: Path) -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        # Nor does anything that it may have changed matter.
        await box.exec("mkdir bin; for name in python3 tar sh; do ln -s /bin/false bin/$name; done")
        assert box._session is not None
        await box.upload(folder, "to")
        await box.exec("echo 'raise SystemExit' > tarfile.py; cp tarfile.py os.py")
        await box.upload(folder, "again")
        assert await box.read_file("again/run") == await box.read_file("to/src/main.sh")

    inside(body)


def test_the_archive_is_the_same_wherever_it_is_made(folder: Path, tmp_path: Path) -> None:
    assert pack(folder, (), 2**20) == pack(folder, (), 2**20)
    assert str(tmp_path).encode() not in pack(folder, (), 2**20)


def test_a_scripted_sandbox_has_the_files(folder: Path) -> None:
    async def run() -> ScriptedSandbox:
        async with ScriptedSandbox() as box:
            await box.upload(folder, "to")
        return box

    box = asyncio.run(run())
    assert box.files["/workspace/to/run"] == box.files["/workspace/to/src/main.sh"]
    assert set(box.files) == {
        *("/workspace/to/run", "/workspace/to/src/main.sh", "/workspace/to/Grüße $(id).txt")
    }
    assert box.calls[0].method == "upload"
