"""Folders: uploads and downloads are complete and limited, and bring nothing else."""

from __future__ import annotations

import contextlib
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from vf.sandbox.contract import Sandbox
from vf.sandbox.selfcheck.check import check, expect, refusal

PROGRAM = "#!/bin/sh\necho ran\n"


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a temporary folder on this machine."""
    with tempfile.TemporaryDirectory(prefix="vf-self-check-") as name:
        yield Path(name)


def make_program(folder: Path) -> None:
    """Write a program and a link to it to a folder."""
    program = folder / "bin" / "program.sh"
    program.parent.mkdir()
    program.write_text(PROGRAM)
    program.chmod(0o755)
    (folder / "link").symlink_to("bin/program.sh")


def names(folder: Path) -> list[str]:
    """Return everything that is in it."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@check("folders", "a folder is copied with modes and links, and not beyond max_bytes")
async def inwards(sandbox: Sandbox) -> None:
    with temporary_folder() as here:
        make_program(here)
        with refusal(ValueError, "a folder of more than max_bytes"):
            await sandbox.upload(here, "copied", max_bytes=10)
        (here / "Grüße $(id).txt").write_bytes(b"\0\xff")
        (here / "empty").mkdir()
        (here / "bin/.venv").mkdir()
        await sandbox.upload(here, "copied")
        await sandbox.upload(here, "whole", leave_out=())
    expect("stdout of what was copied", "ran\n", (await sandbox.exec("./copied/link")).stdout)
    content = await sandbox.read_file("copied/Grüße $(id).txt")
    expect("the content of a file with an odd name", b"\0\xff", content)
    listed = await sandbox.exec("cd copied; ls -A . bin; ls -A ../whole/bin")
    folders = [name for name in listed.stdout.split() if name in ("empty", ".venv")]
    expect("which folders came, one of them only where asked for", ["empty", ".venv"], folders)


@check("folders", "what is there already and has another name stays")
async def beside(sandbox: Sandbox) -> None:
    await sandbox.exec("mkdir -p beside/bin; echo kept > beside/bin/kept; echo old > beside/link")
    with temporary_folder() as here:
        make_program(here)
        (here / "left").mkdir()
        await sandbox.upload(here, "beside", leave_out=["left"])
    listing = await sandbox.exec("cat beside/bin/kept; ls beside; ./beside/link")
    expect("what is there then", "kept\nbin\nlink\nran\n", listing.stdout)


@check("folders", "a folder comes out with modes and links")
async def outwards(sandbox: Sandbox) -> None:
    await sandbox.exec("mkdir -p out/bin out/empty out/.git; ln -s bin/program.sh out/link")
    await sandbox.write_file("out/bin/program.sh", PROGRAM)
    await sandbox.write_file("out/Grüße 世界", bytes(range(256)) * 4096)
    await sandbox.exec(["chmod", "755", "out/bin/program.sh"])
    with temporary_folder() as here:
        await sandbox.download("out", here / "to", leave_out=[".git"])
        expect(
            "the names that came",
            ["Grüße 世界", "bin", "bin/program.sh", "empty", "link"],
            names(here / "to"),
        )
        content = (here / "to" / "Grüße 世界").read_bytes()
        expect("the content of 1 MiB", bytes(range(256)) * 4096, content)
        expect("the target of the link", Path("bin/program.sh"), (here / "to/link").readlink())
        mode = stat.S_IMODE((here / "to/bin/program.sh").stat().st_mode)
        expect("the mode of a program", oct(0o755), oct(mode))


@check("folders", "what is not a file, and a link that leads out, do not come out")
async def hostile(sandbox: Sandbox) -> None:
    await sandbox.exec(
        "mkdir -p odd/in; cd odd; mkfifo fifo; echo x > file; ln -s /etc/passwd absolute;"
        "ln -s ../.. up; ln -s . here; ln -s here/../.. round; ln -s ../file in/fine"
    )
    with temporary_folder() as here:
        await sandbox.download("odd", here / "to")
        downloaded = names(here / "to")
    expect("the names that came", ["file", "here", "in", "in/fine"], downloaded)


@check("folders", "a link that is there already leads nothing elsewhere")
async def followed(sandbox: Sandbox) -> None:
    await sandbox.exec("mkdir -p theirs/folder; echo theirs | tee theirs/file theirs/folder/file")
    with temporary_folder() as here:
        (here / "to").mkdir()
        (here / "mine").mkdir()
        (here / "mine/file").write_text("mine")
        (here / "to/folder").symlink_to(here / "mine")
        (here / "to/file").symlink_to(here / "mine/file")
        with contextlib.suppress(OSError):
            await sandbox.download("theirs", here / "to")
        expect("a file outside", "mine", (here / "mine/file").read_text())


@check("folders", "one of more than max_bytes is ValueError, and nothing of it comes")
async def limit(sandbox: Sandbox) -> None:
    await sandbox.exec("mkdir -p large/many; head -c 100000 /dev/zero > large/file")
    await sandbox.exec("cd large/many; seq 500 | xargs touch")
    with temporary_folder() as here:
        with refusal(ValueError, "a folder of more than max_bytes"):
            await sandbox.download("large", here / "to", leave_out=["many"], max_bytes=99_999)
        with refusal(ValueError, "a folder of more names than fit into max_bytes"):
            await sandbox.download("large/many", here / "to", max_bytes=100_000)
        expect("the names that came", [], names(here))
        await sandbox.download("large", here / "to", leave_out=["many"], max_bytes=110_000)


@check("folders", "what is missing, or is none, is refused with the right error")
async def refused(sandbox: Sandbox) -> None:
    await sandbox.write_file("plain", "x")
    with temporary_folder() as here:
        with refusal(FileNotFoundError, "downloading what is missing"):
            await sandbox.download("no/such", here)
        with refusal(NotADirectoryError, "downloading a file"):
            await sandbox.download("plain", here)
        with refusal(NotADirectoryError, "uploading what is missing"):
            await sandbox.upload(here / "none", "to")
        with refusal(OSError, "uploading to where a file is"):
            await sandbox.upload(here, "plain")


@check("folders", "a snapshot has a name, or is NotImplementedError")
async def snapshot(sandbox: Sandbox) -> None:
    with contextlib.suppress(NotImplementedError):
        name = await sandbox.snapshot()
        expect("whether the name is a text", True, isinstance(name, str) and bool(name))
