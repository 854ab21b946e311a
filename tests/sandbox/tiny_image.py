"""Images made of a few files, without a registry."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence

from tests.parts import require
from vf.sandbox.container.docker_engine import Engine

USERS = "root:x:0:0::/root:/bin/sh\napp:x:1234:1234::/home/app:/bin/sh\n"
GROUPS = "root:x:0:\napp:x:1234:\ntools:x:77:app,other\nothers:x:78:other\n"


def make_image(
    engine: Engine,
    tag: str,
    files: Mapping[str, str | bytes],
    *,
    links: Mapping[str, str] | None = None,
    changes: Sequence[str] = (),
) -> str:
    """Make an image of files, all of which may be run, and instructions of a Dockerfile."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name, content in files.items():
            raw = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(raw), 0o755
            tar.addfile(info, io.BytesIO(raw))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
    name, _, version = tag.partition(":")
    engine.call_now(
        "import_image_from_data", data.getvalue(), repository=name, tag=version, changes=changes
    )
    return tag


def busybox() -> tuple[dict[str, str | bytes], dict[str, str]]:
    """Return files and links of an image that has a shell, and no C library.

    The test is skipped where there is no static busybox.
    """
    require("busybox")
    program = str(shutil.which("busybox"))
    listed = subprocess.run([program, "--list"], capture_output=True, text=True, check=True)
    with open(program, "rb") as file:
        files: dict[str, str | bytes] = {"bin/busybox": file.read()}
    files |= {"etc/passwd": USERS, "etc/group": GROUPS}
    return files, {f"bin/{name}": "busybox" for name in listed.stdout.split() if name != "busybox"}
