"""Files: what is written is what is read, and what cannot be is said in the usual words."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.sandbox.local_box import inside
from vf.sandbox.inside import files
from vf.sandbox.local import UnsafeLocalSandbox

MIB = 2**20


def test_the_limit_of_a_read() -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        with pytest.raises(ValueError, match="negative"):
            await box.read_file("f", max_bytes=-1)
        await box.exec("truncate -s 100M sparse")
        with pytest.raises(ValueError, match="more than max_bytes"):
            await box.read_file("sparse")
        # Its size is said to be 0.
        with pytest.raises(ValueError, match="more bytes than max_bytes = 10"):
            await box.read_file("/proc/cpuinfo", max_bytes=10)
        assert len(await box.read_file("/proc/cpuinfo")) > 10

    inside(body)


def test_a_file_that_grows_while_it_is_read_ends() -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        grow = "while :; do head -c 100000 /dev/zero >> f; done"
        await box.bash(f"({grow}) & until [ -s f ]; do :; done")
        for _ in range(3):
            with contextlib.suppress(ValueError):  # it grew too large meanwhile
                content = await asyncio.wait_for(box.read_file("f", max_bytes=4 * MIB), 60)
                assert len(content) <= 4 * MIB

    inside(body)


def test_writing_where_that_cannot_be() -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        await box.exec("mkdir d; echo x > f; ln -s l l")
        with pytest.raises(IsADirectoryError):
            await box.write_file("", "x")
        for path in ("f/x", "/proc/nope/x", "x" * 300):
            with pytest.raises(OSError, match=r"."):
                await box.write_file(path, "x")
        assert (await box.exec("cat f; ls")).stdout == "x\nd\nf\nl\n"

    inside(body)


def test_modes_links_and_pipes() -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        await box.write_file("new", "x")
        await box.exec("echo old > script; chmod 750 script; ln -s script link; mkfifo p")
        await box.write_file("link", "#!/bin/sh\necho new\n")
        assert (await box.exec(["./script"])).stdout == "new\n"
        assert (await box.exec("test -L link")).ok
        await asyncio.wait_for(box.write_file("p", "no pipe any more"), 60)
        assert await box.read_file("p") == b"no pipe any more"
        modes = (await box.exec("stat -c %a new script")).stdout
        assert modes == "644\n750\n"

    inside(body)


def test_an_old_file_is_replaced_at_once_or_not_at_all() -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        old, new = b"o" * 5 * MIB, b"n" * 5 * MIB
        await box.write_file("f", old)
        write = asyncio.create_task(box.write_file("f", new))
        while not write.done():
            assert await box.read_file("f") in (old, new)
        assert await box.read_file("f") == new
        # More than the limit of a file's size: the old one stays, and nothing else.
        with pytest.raises(OSError, match="File too large"):
            await box.write_file("f", b"x" * 129 * MIB)
        assert await box.read_file("f") == new
        assert (await box.exec("ls -A")).stdout == "f\n"

    inside(body)


def test_a_cancelled_write_leaves_nothing_and_a_cancelled_read_stops() -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        data = b"x" * 40 * MIB
        for pause in (0, 0.001, 0.01, 0.03):
            call = asyncio.create_task(box.write_file("f", data))
            await asyncio.sleep(pause)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
        while (await box.exec("ls -A")).stdout not in ("", "f\n"):
            pass
        await box.write_file("f", data)
        for pause in (0, 0.001, 0.01):
            read = asyncio.create_task(box.read_file("f"))
            await asyncio.sleep(pause)
            read.cancel()
            await asyncio.gather(read, return_exceptions=True)
        assert await box.read_file("f") == data

    inside(body)


def test_many_files_at_once() -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        content = {f"d{n % 5}/f{n}": os.urandom(100_000 + n) for n in range(40)}
        await asyncio.gather(*(box.write_file(path, data) for path, data in content.items()))
        got = await asyncio.gather(*(box.read_file(path) for path in content))
        assert got == list(content.values())

    inside(body)


def test_a_cancel_that_comes_while_a_file_is_opened_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_and_hear(*args: Any) -> NoReturn:
        os.close(opened(*args))
        raise ValueError("the call was cancelled")  # as its signal's handler does

    opened = os.open
    monkeypatch.setattr(os, "open", open_and_hear)
    with pytest.raises(ValueError, match="cancelled"):
        files.write(str(tmp_path / "f"), -1, 0, 0o022)
    assert list(tmp_path.iterdir()) == []
