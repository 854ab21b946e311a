"""The files of images beside a traces file."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterable
from pathlib import Path

from vf.traces.images import FOLDER, NAMED, TYPES, BadImage, Image

log = logging.getLogger(__name__)


def keep_images(images: Iterable[Image], folder: Path) -> None:
    """Write images into the folder ``images`` beside a traces file, each whole or not at all.

    An image that cannot be read any more is named in a warning: its trace is kept without it.

    Args:
        images: The images; those that are there already are left alone.
        folder: The folder of the traces file.

    Raises:
        OSError: If the disk is full or the folder cannot be written.
    """
    for image in {image.name: image for image in images}.values():
        path = folder / FOLDER / image.name
        if path.exists():
            continue
        try:
            data = image.read()
        except BadImage as error:
            log.warning("%s", error)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            unfinished.write_bytes(data)
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)


def find_image(name: str, files: Iterable[Path]) -> tuple[Path, str] | None:
    """Return the file of an image and its media type; None if there is none.

    Args:
        name: The file's name, from whoever asks for it.
        files: The traces files beside which it may be.
    """
    named = NAMED.fullmatch(name)
    if named is None or "/" in name:
        return None
    for folder in dict.fromkeys(file.parent for file in files):
        if (path := folder / FOLDER / name).is_file():
            return path, TYPES[named[2]]
    return None
