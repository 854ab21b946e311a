"""Which paths of the agent's container the tests see."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from vf.bridges.harbor.artifacts import Keeper
from vf.bridges.harbor.config import Artifact
from vf.bridges.harbor.container import Unverifiable
from vf.bridges.harbor.model import Part, Phase, Script
from vf.bridges.harbor.work import ImageFacts, Work, paths_for_tests

PHASE = Phase(None, None, ())


def part(*artifacts: Artifact) -> Part:
    return Part("", "", PHASE, PHASE, Script((), "/tests", "test.sh"), artifacts=artifacts)


@pytest.mark.parametrize(
    ("workdir", "artifacts", "paths"),
    [
        ("", [], ["/app", "/logs"]),
        ("/app/repo", [], ["/app", "/logs"]),
        (
            "/srv/work",
            ["/srv/work/out", "/etc/nginx/"],
            ["/app", "/etc/nginx", "/logs", "/srv/work"],
        ),
        ("/srv/work", ["out/a", "/srv"], ["/app", "/logs", "/srv"]),
        ("/apples", ["/logs/artifacts", "/tmp/x", "/dev/shm"], ["/app", "/apples", "/logs"]),
    ],
)
def test_the_work_folder_the_logs_and_what_is_declared(
    workdir: str, artifacts: list[str], paths: list[str]
) -> None:
    given = part(*(Artifact(source=path) for path in artifacts))
    assert list(paths_for_tests(given, workdir)) == paths


def test_what_is_kept_of_a_service_is_not_the_agents() -> None:
    assert list(paths_for_tests(part(Artifact(source="/data", service="db")), "")) == [
        "/app",
        "/logs",
    ]


class Full:
    """A container whose every folder has an archive of 60 bytes; see Auditable."""

    async def read_tree(self, path: str, read: Callable[[Iterator[bytes]], Any]) -> Any:
        return read(iter([b"x" * 20] * 3))

    async def remove(self, paths: Collection[str]) -> None:
        assert list(paths) == ["/logs/verifier"]


class Files:
    """A container whose every path is a file of 10 bytes; see Sandbox."""

    async def download(self, path: str, to: Path, **how: Any) -> None:
        raise NotADirectoryError(path)

    async def read_file(self, path: str, *, max_bytes: int) -> bytes:
        if max_bytes < 10:
            raise ValueError(f"more than {max_bytes} bytes")
        return b"x" * 10


def test_all_artifacts_have_no_more_bytes_than_the_disk(tmp_path: Path) -> None:
    three = part(*(Artifact(source=f"/data/{name}") for name in "abc"))

    async def collect() -> dict[str, Any]:
        async with Keeper(tmp_path, "task", "", 25) as keeper:
            return await keeper.collect(Files(), three)  # type: ignore[arg-type]

    manifest = Path(asyncio.run(collect())["artifacts"], "manifest.json")
    problems = [each.get("problem") for each in json.loads(manifest.read_text())]
    assert problems == [None, None, "more than 5 bytes"]


def test_all_copies_of_the_work_have_no_more_bytes_than_its_disk() -> None:
    async def take(most: int) -> None:
        with Work(part(Artifact(source="/data")), ImageFacts("/app"), most) as work:
            await work.take(Full())  # type: ignore[arg-type]

    asyncio.run(take(180))
    with pytest.raises(Unverifiable, match="more than 179 bytes"):
        asyncio.run(take(179))
