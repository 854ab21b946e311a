"""Earlier verdicts, in memory or in a folder."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vf.runtime.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Vote:
    """One verdict of a judge, and what it cost.

    Attributes:
        choices: The choice by criterion.
        reason: The judge's whole reply.
        prompt_tokens: Tokens that were read for it, retries included.
        completion_tokens: Tokens that were written for it, retries included.
        requests: How often the judge was asked until the verdict could be read.
    """

    choices: dict[str, str]
    reason: str
    prompt_tokens: int
    completion_tokens: int
    requests: int


class VerdictCache:
    """Votes by key; in a folder they outlive the process, and several processes may share it.

    Args:
        folder: The folder to keep them in, one small JSON file each; None keeps them in memory.

    Raises:
        ConfigError: If the folder cannot be made.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._votes: dict[str, Vote] = {}
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigError(f"judge: cannot use {folder} for its cache: {error}") from error

    @staticmethod
    def key(**parts: Any) -> str:
        """Return the key of everything that a verdict depends on."""
        text = json.dumps(parts, sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def get(self, key: str) -> Vote | None:
        """Return the vote under a key. A file that cannot be read counts as none."""
        if key not in self._votes and self.folder is not None:
            try:
                raw = json.loads(self._path(self.folder, key).read_text(encoding="utf-8"))
                self._votes[key] = Vote(**raw)
            except (OSError, ValueError, TypeError):
                return None
        return self._votes.get(key)

    def put(self, key: str, vote: Vote) -> None:
        """Keep a vote.

        Raises:
            OSError: If the folder cannot be written to.
        """
        self._votes[key] = vote
        if self.folder is None:
            return
        path = self._path(self.folder, key)
        path.parent.mkdir(exist_ok=True)
        unfinished = path.with_name(f"{uuid.uuid4().hex}.tmp")
        unfinished.write_text(json.dumps(asdict(vote)), encoding="utf-8")
        os.replace(unfinished, path)  # a file under its own name is always whole

    @staticmethod
    def _path(folder: Path, key: str) -> Path:
        return folder / key[:2] / f"{key}.json"
