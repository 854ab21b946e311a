"""Which paths of the agent's container the tests see."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pytest

from vf.bridges.harbor.config import Artifact
from vf.bridges.harbor.container import Spoilt
from vf.bridges.harbor.model import Part, Phase, Script
from vf.bridges.harbor.seen import Known, Work, kept

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
    assert list(kept(given, workdir)) == paths


def test_what_is_kept_of_a_service_is_not_the_agents() -> None:
    assert list(kept(part(Artifact(source="/data", service="db")), "")) == ["/app", "/logs"]


class Full:
    """A container whose every folder has an archive of 60 bytes; see Auditable."""

    async def read_tree(self, path: str, read: Callable[[Iterator[bytes]], Any]) -> Any:
        return read(iter([b"x" * 20] * 3))

    async def remove(self, paths: Collection[str]) -> None:
        assert list(paths) == ["/logs/verifier"]


def test_all_copies_of_the_work_have_no_more_bytes_than_its_disk() -> None:
    async def take(most: int) -> None:
        with Work(part(Artifact(source="/data")), Known("/app"), most) as work:
            await work.take(Full())  # type: ignore[arg-type]

    asyncio.run(take(180))
    with pytest.raises(Spoilt, match="more than 179 bytes"):
        asyncio.run(take(179))
