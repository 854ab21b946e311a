"""Images with a small repository in them, made of the default one, git and pytest."""

from __future__ import annotations

import shutil
from importlib.metadata import distribution
from pathlib import Path

from tests.bridges.swe import small_repo

PACKAGES = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
DOCKERFILE = """\
FROM vf-sandbox:latest
COPY git /usr/bin/git
COPY packages /opt/packages
RUN printf '#!/bin/sh\\nexec python3 -m pytest "$@"\\n' > /usr/bin/pytest && \\
    chmod 755 /usr/bin/git /usr/bin/pytest
ENV PYTHONPATH=/opt/packages PYTHONDONTWRITEBYTECODE=1
COPY repo /testbed
WORKDIR /testbed
"""


def make(folder: Path) -> Path:
    """Make the context of an image, and return the repository in it.

    Git is this machine's, which must be of the default image's distribution.
    """
    folder.mkdir(parents=True)
    git = shutil.which("git")
    assert git is not None
    shutil.copy(git, folder / "git")
    for package in PACKAGES:
        for file in distribution(package).files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                place = folder / "packages" / file
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file.locate(), place)
    (folder / "Dockerfile").write_text(DOCKERFILE)
    return small_repo.make(folder / "repo")
