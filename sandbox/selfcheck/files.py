"""Files: what is written comes back; impossible reads and writes raise the right errors."""

from __future__ import annotations

from vf.sandbox.contract import Sandbox
from vf.sandbox.selfcheck.check import Skipped, check, expect, refusal

LARGE = 50 * 2**20
TEXT = "Grüße, 世界, 🦀, e\u0301\n"


async def round_trip(sandbox: Sandbox, path: str, content: str | bytes) -> None:
    """Write, and expect to read the same."""
    await sandbox.write_file(path, content)
    data = content.encode() if isinstance(content, str) else content
    expect(f"the content of {path!r}", data, await sandbox.read_file(path))


@check("files", "a text comes back")
async def text(sandbox: Sandbox) -> None:
    await round_trip(sandbox, "text.txt", "one\ntwo\r\n\tthree without an end")


@check("files", "every byte comes back")
async def binary(sandbox: Sandbox) -> None:
    await round_trip(sandbox, "binary.bin", bytes(range(256)) * 300)


@check("files", "text is written as UTF-8, in files with such names too")
async def utf8(sandbox: Sandbox) -> None:
    await round_trip(sandbox, "utf8.txt", TEXT)
    await round_trip(sandbox, "Grüße 世界.txt", TEXT)


@check("files", "50 MiB come back")
async def large(sandbox: Sandbox) -> None:
    block = bytes(range(251)) * 4177  # not a power of two long: a swapped piece would show
    await round_trip(sandbox, "large.bin", (block * (LARGE // len(block) + 1))[:LARGE])
    await sandbox.exec(["rm", "large.bin"])


@check("files", "parents are created")
async def parents(sandbox: Sandbox) -> None:
    await round_trip(sandbox, "a/b/c/d.txt", "deep")
    here = (await sandbox.exec('basename "$PWD"')).stdout.strip()
    await round_trip(sandbox, f"../{here}/e/f.txt", "deep")


@check("files", "a file may be empty")
async def empty(sandbox: Sandbox) -> None:
    await round_trip(sandbox, "empty", b"")


@check("files", "names may hold spaces and what a shell would expand")
async def names(sandbox: Sandbox) -> None:
    for name in ("with two  spaces.txt", "$HOME;`id`'\"*?&|.txt", "-rf", "a\nb", "x" * 255):
        await round_trip(sandbox, name, f"this is {name}")


@check("files", "a second write replaces the first, a shorter one too")
async def overwrite(sandbox: Sandbox) -> None:
    await round_trip(sandbox, "again.txt", "a long first text" * 1000)
    await round_trip(sandbox, "again.txt", "short")


@check("files", "relative paths start in the working directory, and programs see the same files")
async def shared(sandbox: Sandbox) -> None:
    await sandbox.write_file("seen.txt", TEXT)
    expect("stdout of `cat seen.txt`", TEXT, (await sandbox.exec("cat seen.txt")).stdout)
    await sandbox.exec("printf made > made.txt")
    expect(
        "the content of a file that a program made", b"made", await sandbox.read_file("made.txt")
    )
    where = (await sandbox.exec("pwd")).stdout.strip()
    absolute = await sandbox.read_file(f"{where}/seen.txt")
    expect("the content of its absolute path", TEXT.encode(), absolute)


@check("files", "what is missing is FileNotFoundError")
async def missing(sandbox: Sandbox) -> None:
    await sandbox.exec("ln -s loop loop; ln -s gone dangling; echo x > plain; ln -s plain link")
    long = "x" * 300
    impossible = ("a\0b", "a\ud800b", "x" * 5000)
    for path in ("no such file", "no/such/file", "plain/x", "loop", "dangling", long, *impossible):
        with refusal(FileNotFoundError, f"reading {path}"):
            await sandbox.read_file(path)
    expect("the content behind a link", b"x\n", await sandbox.read_file("link"))


@check("files", "a name that no file can have is OSError, and text that is none is written")
async def impossible(sandbox: Sandbox) -> None:
    for path in ("a\0b", "a\ud800b", "x" * 5000):
        with refusal(OSError, f"writing {path[:9]!r}"):
            await sandbox.write_file(path, "text")
    await sandbox.write_file("surrogate.txt", "a\ud800b")
    expect("the content, of a lone surrogate", b"a?b", await sandbox.read_file("surrogate.txt"))


@check("files", "a directory is IsADirectoryError")
async def directory(sandbox: Sandbox) -> None:
    await sandbox.exec(["mkdir", "-p", "directory"])
    with refusal(IsADirectoryError, "reading a directory"):
        await sandbox.read_file("directory")
    with refusal(IsADirectoryError, "writing a directory"):
        await sandbox.write_file("directory", "text")


@check("files", "what the user may not touch is PermissionError")
async def permission(sandbox: Sandbox) -> None:
    if (await sandbox.exec(["id", "-u"])).stdout.strip() == "0":
        raise Skipped("its user is root, who may read and write everything")
    await sandbox.exec("echo secret > closed.txt; chmod 0 closed.txt")
    await sandbox.exec("mkdir -p sealed; chmod 500 sealed")
    with refusal(PermissionError, "reading a file without the right"):
        await sandbox.read_file("closed.txt")
    with refusal(PermissionError, "writing into a directory without the right"):
        await sandbox.write_file("sealed/new.txt", "text")


@check("files", "a read takes exactly max_bytes, and not one byte more")
async def limit(sandbox: Sandbox) -> None:
    await sandbox.write_file("ten.txt", b"0123456789")
    content = await sandbox.read_file("ten.txt", max_bytes=10)
    expect("a file of max_bytes", b"0123456789", content)
    with refusal(ValueError, "a file of max_bytes + 1"):
        await sandbox.read_file("ten.txt", max_bytes=9)


@check("files", "anything but a regular file raises ValueError immediately")
async def irregular(sandbox: Sandbox) -> None:
    await sandbox.exec("mkfifo fifo; ln -s fifo to-fifo; ln -s /dev/zero to-zero")
    await sandbox.python("import socket\nsocket.socket(socket.AF_UNIX).bind('socket')")
    for path in ("fifo", "socket", "to-fifo", "to-zero", "/dev/zero", "/dev/null"):
        with refusal(ValueError, f"reading {path}"):
            await sandbox.read_file(path)
