"""The record of a checkpoint whose weights are on a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from vf.runtime.errors import ConfigError
from vf.trainer.saving.checkpoint_files import remove_old
from vf.trainer.saving.export_source import Source
from vf.trainer.tinker_backend.record import RECORD, saved_path, write_record

PATH = "tinker://run/weights/step-1"


def test_it_is_read_and_an_export_says_where_the_weights_are(tmp_path: Path) -> None:
    assert saved_path(tmp_path) is None
    write_record(tmp_path, PATH)
    assert saved_path(tmp_path) == PATH
    with pytest.raises(ConfigError, match=f"at {PATH}: download them"):
        Source.read(tmp_path)
    (tmp_path / RECORD).write_text("{}")
    with pytest.raises(ConfigError, match="cannot be read"):
        saved_path(tmp_path)


def test_what_is_removed_here_can_be_removed_there(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        folder = tmp_path / f"step-{step}"
        folder.mkdir()
        (folder / "progress.json").write_text("{}")
        write_record(folder, f"tinker://run/weights/step-{step}")
    forgotten: list[str | None] = []
    remove_old(tmp_path, 1, lambda folder: forgotten.append(saved_path(folder)))
    assert sorted(map(str, forgotten)) == [f"tinker://run/weights/step-{n}" for n in (1, 2)]
    assert [path.name for path in tmp_path.iterdir()] == ["step-3"]
