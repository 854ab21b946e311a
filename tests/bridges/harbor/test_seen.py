"""Which paths of the agent's container the tests see."""

from __future__ import annotations

import pytest

from vf.bridges.harbor.config import Artifact
from vf.bridges.harbor.model import Part, Phase, Script
from vf.bridges.harbor.seen import kept

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
