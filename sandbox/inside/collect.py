"""Collects a Python that runs in any Linux image: ``python3 -I -S collect.py FOLDER``.

It is this image's own, with the loader, the libraries and the standard library that it needs. It is
started through its loader, ``FOLDER/ld.so --library-path FOLDER/lib FOLDER/bin/python3``, and so
needs nothing of the image that it runs in, not even a C library.

The loader reads ``ld.so.preload`` and ``ld.so.cache`` from the folder, not from ``/etc``, where the
code that runs in an image might have changed them. The path is patched in the loader's binary, so
the folder's path must be as long as ``/etc``.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
import sys
import sysconfig

LEFT_OUT = (
    *("test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "pydoc_data"),
    *("site-packages", "dist-packages", "config-*", "_tkinter*", "_test*"),
)
ETC = b"/etc"


def main(folder: str) -> None:
    """Collect the files once, even if several processes do so at the same time."""
    with open(os.path.join(folder, "lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = os.path.join(folder, "complete")
        if not os.path.exists(done):
            collect(folder)
            open(done, "w").close()


def collect(folder: str) -> None:
    """Copy the interpreter, its loader, its libraries and the standard library."""
    python = os.path.realpath(sys.executable)
    loader = loader_of(python)
    for name in ("bin", "lib"):
        os.makedirs(os.path.join(folder, name), exist_ok=True)
    shutil.copy2(python, os.path.join(folder, "bin", "python3"))
    with open(loader, "rb") as file:
        program = file.read()
    for read in (b"/ld.so.preload\0", b"/ld.so.cache\0"):
        program = program.replace(ETC + read, os.fsencode(folder) + read)
    with open(os.path.join(folder, "ld.so"), "wb") as file:
        file.write(program)
    os.chmod(os.path.join(folder, "ld.so"), 0o755)
    needed = [python]
    for source in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}:
        target = os.path.join(folder, "lib", os.path.basename(source))
        ignored = shutil.ignore_patterns(*LEFT_OUT)
        shutil.copytree(
            source, target, ignore=ignored, ignore_dangling_symlinks=True, dirs_exist_ok=True
        )
        extensions = os.path.join(target, "lib-dynload")
        needed += [os.path.join(extensions, name) for name in sorted(os.listdir(extensions))]
    for file_name in needed:
        for library in libraries_of(loader, file_name):
            target_path = os.path.join(folder, "lib", os.path.basename(library))
            if not os.path.exists(target_path):
                shutil.copy2(library, target_path)


def loader_of(program: str) -> str:
    """Return the loader that a program names.

    Raises:
        ValueError: If it names none.
    """
    with open(program, "rb") as file:
        data = file.read()
    wide = data[4] == 2
    order = "<" if data[5] == 1 else ">"
    start, size, count = (
        struct.unpack_from(order + "Q", data, 32) + struct.unpack_from(order + "HH", data, 54)
        if wide
        else struct.unpack_from(order + "I", data, 28) + struct.unpack_from(order + "HH", data, 42)
    )
    for at in range(start, start + size * count, size):
        if struct.unpack_from(order + "I", data, at)[0] == 3:  # PT_INTERP
            offset = struct.unpack_from(
                order + ("Q" if wide else "I"), data, at + (8 if wide else 4)
            )
            return data[offset[0] : data.index(b"\0", offset[0])].decode()
    raise ValueError(f"{program} has no loader: it is static")


def libraries_of(loader: str, file: str) -> list[str]:
    """Return the paths of the libraries that a file needs, as the loader finds them here."""
    done = subprocess.run([loader, "--list", file], capture_output=True, text=True, check=False)
    words = [line.split() for line in done.stdout.splitlines()]
    return [line[2] for line in words if len(line) > 2 and line[1] == "=>" and line[2][0] == "/"]


if __name__ == "__main__":
    main(sys.argv[1])
