"""A model's name is looked up within seconds, and what was tried is said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("huggingface_hub")

from huggingface_hub import constants

from vf.inference.model_files import Checkpoint, find_model, resolve_model
from vf.runtime.errors import ConfigError
from vf.testing import FakeServer, Request, Response

REVISION = "0123456789abcdef0123456789abcdef01234567"


def has_one_model(request: Request) -> Response:
    """Answer as a hub that has ``here/model`` and no other."""
    if request.path.startswith("/api/models/here/model"):
        return Response({"id": "here/model"})
    return Response({}, 404, {"X-Error-Code": "RepoNotFound"})


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    """A hub on this machine, and an empty cache."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.chdir(tmp_path)
    with FakeServer(has_one_model) as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        yield server


@pytest.fixture
def down(hub: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """No hub: nothing listens where it should be."""
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")


def cache(tmp_path: Path, owner: str, name: str) -> None:
    """Put a model's config where the hub's client keeps it."""
    folder = tmp_path / "cache" / f"models--{owner}--{name}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(REVISION)
    (folder / "snapshots" / REVISION).mkdir(parents=True)
    (folder / "snapshots" / REVISION / "config.json").write_text("{}")


def test_a_model_that_the_hub_has_is_left_to_it(hub: FakeServer) -> None:
    assert find_model("here/model") == "here/model"
    assert constants.HF_HUB_OFFLINE is False


def test_a_model_that_the_hub_does_not_have_is_reported(hub: FakeServer) -> None:
    with pytest.raises(
        ConfigError, match=r"there is no such folder \(.*\), and http.* has no model"
    ):
        find_model("not/there")


def test_without_a_hub_the_message_says_what_was_tried_and_what_to_do(down: None) -> None:
    with pytest.raises(ConfigError) as error:
        Checkpoint.find("not/cached")
    said = str(error.value)
    for part in ("model 'not/cached'", "cache", "cannot be reached", "hf download not/cached"):
        assert part in said


def test_without_a_hub_a_cached_model_is_loaded_without_asking_again(
    down: None, tmp_path: Path
) -> None:
    cache(tmp_path, "once", "fetched")
    assert find_model("once/fetched") == "once/fetched"
    assert constants.HF_HUB_OFFLINE is True


def test_offline_mode_asks_nobody(hub: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE is set"):
        find_model("here/another")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("./nowhere", "there is no such folder"),
        ("models/smollm2", "there is no such folder"),  # ./models exists, so it is no owner
        ("a/b/c", "there is no such folder"),
        ("two words", "it is not a name on the hub"),
    ],
)
def test_a_folder_that_is_not_there_is_reported_at_once(
    hub: FakeServer, tmp_path: Path, name: str, said: str
) -> None:
    (tmp_path / "models").mkdir()
    with pytest.raises(ConfigError, match=said):
        find_model(name)


def test_a_folder_in_the_home_directory_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "mine").mkdir()
    assert find_model("~/mine") == resolve_model("~/mine") == str(tmp_path / "mine")
