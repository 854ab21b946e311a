"""Checkpoints on a disk: whole or not there, whatever ends the server that writes them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from vf.runtime.errors import ConfigError
from vf.trainer.tinker_api.checkpoints import CheckpointInfo, CheckpointPath, Checkpoints, NotFound

PATH = CheckpointPath("run", "weights", "one")
INFO = CheckpointInfo("tiny", "f00d", {"rank": 4}, 3, 1.0)


def save(store: Checkpoints, value: float, **more: Any) -> None:
    tensors = {"a": torch.full((3,), value)}
    store.save(PATH, INFO, {"r": 4}, tensors, {"m": torch.ones(2)}, **{"overwrite": True} | more)


def value(store: Checkpoints) -> float:
    return float(store.weights(PATH)[1]["a"][0])


def test_a_checkpoint_is_read_back(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    save(store, 1.0)
    with pytest.raises(ConfigError, match="another server uses it"):
        Checkpoints(tmp_path)
    store.close()
    store = Checkpoints(tmp_path)
    assert store.info(PATH) == INFO
    assert value(store) == 1.0
    assert store.moments(PATH)["m"].tolist() == [1.0, 1.0]
    assert str(PATH) == "tinker://run/weights/one"
    assert CheckpointPath.parse(str(PATH)) == PATH


class Killed(BaseException):
    pass


@pytest.mark.parametrize("call", range(1, 12))
def test_a_server_that_is_killed_while_it_overwrites_leaves_one_of_the_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    """Killed before the n-th change of a name or sync; nothing is cleaned up after it."""
    store = Checkpoints(tmp_path)
    save(store, 1.0)
    count = 0

    def counted(real: Any) -> Any:
        def step(*args: Any) -> Any:
            nonlocal count
            count += 1
            if count >= call:
                raise Killed
            return real(*args)

        return step

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", counted(Path.rename))
        patch.setattr(os, "fsync", counted(os.fsync))
        patch.setattr("shutil.rmtree", lambda *args, **options: None)
        try:
            save(store, 2.0)
        except Killed:
            finished = False
        else:
            finished = True
    store.close()
    again = Checkpoints(tmp_path)
    assert value(again) == 2.0 if finished else value(again) in (1.0, 2.0)
    assert [path.name for path in (tmp_path / "run" / "weights").iterdir()] == ["one"]


def test_a_disk_that_is_full_is_an_error_and_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Checkpoints(tmp_path)
    save(store, 1.0)

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(OSError, match="No space left"):
        save(store, 2.0)
    assert value(store) == 1.0


def test_what_is_not_there_or_damaged_is_named(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    with pytest.raises(NotFound, match="tinker://run/weights/one: there is no such checkpoint"):
        store.info(PATH)
    save(store, 1.0)
    with pytest.raises(ConfigError, match="overwrite=True replaces it"):
        save(store, 2.0, overwrite=False)
    (tmp_path / "run/weights/one/adapter_model.safetensors").write_bytes(b"\x80\x04broken")
    with pytest.raises(ConfigError, match=r"adapter_model\.safetensors cannot be read"):
        store.weights(PATH)
    (tmp_path / "run/weights/one/checkpoint.json").write_text("{")
    with pytest.raises(ConfigError, match=r"checkpoint\.json cannot be read"):
        store.info(PATH)
