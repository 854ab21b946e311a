"""A maker of images whose names, records and logs are a test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.sandbox.own_images import REPOSITORY, remove_images
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.images.builds import Images


@pytest.fixture
def make_images(engine: Engine, tmp_path: Path) -> Iterator[Callable[..., Images]]:
    """Make ones that share their records; what they built is removed."""

    def make(**options: Any) -> Images:
        own: dict[str, Any] = {"repository": REPOSITORY, "folder": tmp_path / "images"}
        return Images(engine, **own | options)

    yield make
    remove_images(engine)


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    """Make a folder with a Dockerfile that starts from the default image."""

    def make(name: str, *lines: str) -> Path:
        place = tmp_path / name
        place.mkdir()
        (place / "Dockerfile").write_text("\n".join(["FROM vf-sandbox:latest", *lines, ""]))
        return place

    return make
