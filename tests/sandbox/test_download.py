"""Folders come out of sandboxes as they are, and whatever is in them, nothing else is touched."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sandbox.local_box import inside
from vf.runtime.errors import SandboxError
from vf.sandbox import folder as folders
from vf.sandbox.folder import DEEPEST, ENTER, FILE, LEAVE, LINK, MORE, Pack, Unpack, record
from vf.sandbox.local import UnsafeLocalSandbox
from vf.sandbox.scripted_sandbox import ScriptedSandbox

MIB = 2**20
PROGRAM = "#!/bin/sh\necho ran\n"


def found_in(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def test_files_links_and_modes_come_out(tmp_path: Path) -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        await box.write_file("from/src/main.sh", PROGRAM)
        await box.write_file("from/Grüße $(id).txt", b"\0\xff")
        await box.write_file("from/large", bytes(range(256)) * 4000)
        await box.exec(
            "cd from; chmod 4777 src/main.sh; mkdir -p shut/in empty a/b .venv; touch .venv/x;"
            "ln -s src/main.sh run; ln -s ../../src a/b/up; chmod 500 shut;"
            "printf x > $(printf '\\377')"
        )
        (tmp_path / "to").mkdir()
        (tmp_path / "to/kept").write_text("kept")
        (tmp_path / "to/run").write_text("replaced")
        await box.download("from", tmp_path / "to", leave_out=[".venv"])

    inside(body)
    to = tmp_path / "to"
    assert (to / "run").read_text() == (to / "a/b/up/main.sh").read_text() == PROGRAM
    assert os.readlink(to / "run") == "src/main.sh"
    assert (to / "Grüße $(id).txt").read_bytes() == b"\0\xff"
    assert (to / "large").read_bytes() == bytes(range(256)) * 4000
    assert Path(os.fsdecode(bytes(to) + b"/\xff")).read_text() == "x"
    assert (to / "kept").read_text() == "kept"
    assert not (to / ".venv").exists()
    # Nobody else may write, nothing runs as another, and its owner may remove it.
    assert stat.S_IMODE((to / "src/main.sh").stat().st_mode) == 0o755
    assert stat.S_IMODE((to / "shut").stat().st_mode) == 0o700
    assert (to / "shut/in").is_dir()


def test_what_cannot_be_had_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        to = tmp_path / "to"
        await box.exec("mkdir a deep; head -c 5000 /dev/zero > a/f; truncate -s 100M huge; mkdir b")
        await box.exec("mv huge b; mkdir many; cd many; seq 300 | xargs touch; ln -s l ../l")
        with pytest.raises(ValueError, match=r"^a: .*more than max_bytes = 5000 bytes, up to f"):
            await box.download("a", to, max_bytes=5000)
        with pytest.raises(ValueError, match="max_bytes"):
            await box.download("b", to)
        with pytest.raises(ValueError, match="max_bytes"):
            await box.download("many", to, max_bytes=100_000)
        assert (await box.python("import os\nfor _ in range(150): os.mkdir('d'); os.chdir('d')")).ok
        with pytest.raises(ValueError, match="100 folders deep"):
            await box.download(".", to, leave_out=["a", "b", "many"])
        await box.exec("mkdir -p shut/a/b; chmod 0 shut/a/b")
        if (await box.exec("ls shut/a/b")).returncode:  # root may read it
            with pytest.raises(PermissionError, match=r"\(a/b\): 'shut'"):
                await box.download("shut", to)
        with pytest.raises(ValueError, match="negative"):
            await box.download("a", to, max_bytes=-1)
        assert not to.exists()
        await box.download("a", to, max_bytes=6000)
        assert (to / "f").stat().st_size == 5000

    inside(body)


def test_what_is_not_a_file_is_left_out_and_waited_for_by_nobody(tmp_path: Path) -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        await box.exec("mkdir f; cd f; mkfifo fifo; touch real; ln -s fifo via; ln -s real good")
        await box.python("import os, socket; os.chdir('f'); socket.socket(1).bind('socket')")
        for target in ("/etc", "/etc/passwd", "..", "../../x", "good/../../x", "./../.."):
            await box.exec(["ln", "-s", target, "f/out" + target.replace("/", "_")])
        await asyncio.wait_for(box.download("f", tmp_path / "to"), 60)

    inside(body)
    assert found_in(tmp_path) == {"to", "to/real", "to/via", "to/good"}


def test_a_chain_of_links_does_not_lead_out(tmp_path: Path) -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        # Each looks as if it stayed within; together they climb.
        await box.exec(
            "mkdir -p f/p/q; cd f; ln -s . here; ln -s ../.. p/q/top; ln -s top/../../x p/q/out;"
            "ln -s here/../x up; ln -s p/q/top/.. round"
        )
        await box.download("f", tmp_path / "to")

    inside(body)
    assert found_in(tmp_path / "to") == {"here", "p", "p/q", "p/q/top"}
    assert (tmp_path / "to/p/q/top").resolve() == tmp_path / "to"


def test_links_that_are_there_already_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_text("mine")
    to = tmp_path / "to"
    to.mkdir()
    (to / "file").symlink_to(outside / "f")
    (to / "dir").symlink_to(outside)

    async def body(box: UnsafeLocalSandbox) -> None:
        await box.exec("mkdir a b; echo theirs > a/file; mkdir b/dir; echo theirs > b/dir/f")
        await box.download("a", to)
        with pytest.raises(NotADirectoryError):  # a failure of a name is not this machine's
            await box.download("b", to)
        await box.exec("mkdir -p c/file")
        with pytest.raises(NotADirectoryError):
            await box.download("c", to)

    inside(body)
    assert (outside / "f").read_text() == "mine"
    assert (to / "file").read_text() == "theirs\n"
    assert found_in(outside) == {"f"}


def test_a_machine_that_fails_to_write_is_no_doing_of_the_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def body(box: UnsafeLocalSandbox) -> None:
        await box.write_file("a/f", "x")
        monkeypatch.setattr(folders, "write_all", full)
        with pytest.raises(SandboxError, match="No space left"):
            await box.download("a", tmp_path)
        assert box.alive

    inside(body)


@pytest.mark.slow
@pytest.mark.gate
def test_a_tree_that_changes_while_it_is_read_harms_nobody(tmp_path: Path) -> None:
    swap = """
import os, threading
os.makedirs("f/d/e", exist_ok=True)
for n in range(200): open(f"f/d/{n}", "w").write("x" * 1000)
def churn():
    while not os.path.exists("stop"):
        for name in ("d", "e"):
            try:
                os.rename(f"f/{name}", "f/away"); os.symlink("/etc", f"f/{name}")
                os.unlink(f"f/{name}"); os.mkfifo(f"f/{name}"); os.unlink(f"f/{name}")
                os.rename("f/away", f"f/{name}")
            except OSError: pass
thread = threading.Thread(target=churn)
thread.start()
"""

    async def body(box: UnsafeLocalSandbox) -> None:
        assert (await box.python(swap)).ok
        for number in range(20):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                async with asyncio.timeout(60):
                    await box.download("f", tmp_path / str(number))
        await box.write_file("stop", "")

    inside(body)
    assert not [path for path in tmp_path.rglob("*") if "passwd" in path.name]
    assert not [path for path in tmp_path.rglob("*") if path.is_symlink() or path.is_fifo()]


def unpack(root: Path, records: Iterable[bytes]) -> None:
    box = Unpack(str(root), foreign=True)
    try:
        for data in records:
            box.feed(data)
        box.finish()
    finally:
        box.close()


@pytest.mark.parametrize("strict", [False, True])
def test_a_link_that_is_replaced_while_it_is_read_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strict: bool
) -> None:
    readlink = os.readlink

    def replace_and_read(name: str, *, dir_fd: int) -> str:
        os.unlink(name, dir_fd=dir_fd)
        os.mkdir(name, dir_fd=dir_fd)
        return readlink(name, dir_fd=dir_fd)

    (tmp_path / "from").mkdir()
    (tmp_path / "from/file").touch()
    (tmp_path / "from/link").symlink_to("file")
    monkeypatch.setattr(os, "readlink", replace_and_read)
    if strict:  # our own folder, which nobody is to change
        with pytest.raises(OSError, match="Invalid argument"):
            list(Pack(str(tmp_path / "from"), (), MIB, strict=True))
    else:
        unpack(tmp_path / "to", Pack(str(tmp_path / "from"), (), MIB, strict=False))
        assert found_in(tmp_path / "to") == {"file"}


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "/etc", "a\0b"])
@pytest.mark.parametrize("kind", [ENTER, FILE, LINK])
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str, kind: bytes) -> None:
    with pytest.raises(ValueError, match="is not a name"):
        unpack(tmp_path / "to", [record(kind, 0o777, name, b"x")])
    assert found_in(tmp_path) == {"to"}


@pytest.mark.parametrize(
    ("records", "why"),
    [
        ([record(LEAVE)], "not entered"),
        ([record(ENTER, 0o755, "a")], "not all"),
        ([record(FILE, 0o755, "a", b"x")[:-1]], "not all"),
        ([record(b"?", 0o755, "a")], "no record"),
        ([record(ENTER, 0o755, "a")] * (DEEPEST + 1), "folders deep"),
        ([folders.RECORD.pack(FILE, 0, 1, 2**31)], "too large"),
    ],
)
def test_what_is_not_a_folder_is_refused(tmp_path: Path, records: list[bytes], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        unpack(tmp_path / "to", records)


def test_names_that_this_file_system_does_not_have_are_left_out(tmp_path: Path) -> None:
    long = "x" * 256
    inner = [record(ENTER, 0o755, "in"), record(FILE, 0o644, "f", b"x"), record(LEAVE)]
    refused = [record(ENTER, 0o755, long), *inner, record(LEAVE), record(FILE, 0o644, long, b"x")]
    unpack(tmp_path, [*refused, record(MORE, data=b"y"), record(FILE, 0o644, "last", b"z")])
    assert found_in(tmp_path) == {"last"}


NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1)
TREES = st.recursive(
    st.binary(max_size=300),
    lambda inner: st.dictionaries(NAMES.filter(lambda n: n not in (".", "..")), inner, max_size=4),
    max_leaves=12,
)
Tree = bytes | dict[str, "Tree"]


@settings(deadline=None, max_examples=60)
@given(TREES, st.lists(st.integers(1, 60), max_size=30))
def test_any_folder_cut_anywhere_comes_out_as_it_went_in(
    tmp_path_factory: pytest.TempPathFactory, tree: Tree, cuts: list[int]
) -> None:
    def make(path: Path, tree: Tree) -> None:
        if isinstance(tree, bytes):
            path.write_bytes(tree)
            return
        path.mkdir()
        for name, inner in tree.items():
            if len(os.fsencode(name)) < 200:
                make(path / name, inner)

    def read(path: Path) -> Tree:
        if path.is_dir():
            return {inner.name: read(inner) for inner in path.iterdir()}
        return path.read_bytes()

    place = tmp_path_factory.mktemp("trees")
    make(place / "from", tree if isinstance(tree, dict) else {"only": tree})
    data = b"".join(Pack(str(place / "from"), (), MIB, strict=True))
    pieces = []
    for cut in cuts:
        pieces.append(data[:cut])
        data = data[cut:]
    unpack(place / "to", [*pieces, data])
    assert read(place / "to") == read(place / "from")


def test_a_scripted_sandbox_has_folders(tmp_path: Path) -> None:
    async def run() -> None:
        files: dict[str, str | bytes] = {"a/b/c": "1", "a/d": b"2", "a/no/e": "3", "f": "4"}
        box = ScriptedSandbox(files=files)
        await box.download("a", tmp_path / "to", leave_out=["no"])
        with pytest.raises(FileNotFoundError):
            await box.download("no", tmp_path)
        with pytest.raises(NotADirectoryError):
            await box.download("f", tmp_path)
        with pytest.raises(ValueError, match="max_bytes"):
            await box.download("a", tmp_path, max_bytes=1)
        assert await box.snapshot() == "snapshot-1"

    asyncio.run(run())
    assert found_in(tmp_path / "to") == {"b", "b/c", "d"}
