"""Where on a server of the Tinker API a checkpoint's weights and moments are: its ``tinker.json``.

Importing this module loads no torch.
"""

from __future__ import annotations

import json
from pathlib import Path

from vf.runtime.errors import ConfigError

RECORD = "tinker.json"


def write_record(folder: Path, path: str) -> None:
    """Write where a checkpoint's weights are into its folder."""
    (folder / RECORD).write_text(json.dumps({"path": path}), encoding="utf-8")


def saved_path(folder: Path) -> str | None:
    """Return where on the server a checkpoint's weights are; None if it is of a local run.

    Raises:
        ConfigError: If its record is unreadable.
    """
    record = folder / RECORD
    if not record.exists():
        return None
    try:
        return str(json.loads(record.read_text(encoding="utf-8"))["path"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{record} cannot be read: {error}") from error


def check_is_local(folder: Path, fix: str) -> None:
    """Check that a checkpoint's weights are on this machine.

    Args:
        folder: The checkpoint's folder.
        fix: The way out, for the message.

    Raises:
        ConfigError: If they are on a server.
    """
    if (path := saved_path(folder)) is not None:
        raise ConfigError(
            f"the weights of {folder} are on a server of the Tinker API, at {path}: {fix}"
        )
