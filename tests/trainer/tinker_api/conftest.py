from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trainer.tinker_api.api_client import ApiClient, running_api


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def api(folder: Path) -> Iterator[ApiClient]:
    with running_api(folder) as client:
        yield client
