"""Links of the agent's that lead to what is the tests'."""

from __future__ import annotations

import tarfile
from typing import Any

import pytest

from tests.bridges.harbor.folders import SCRIPT, MakeTask
from tests.bridges.harbor.playing import bash, play, record
from vf.bridges.harbor.links import links_to_tests
from vf.sandbox.trees import Entry, Tree


def tree(**links: str) -> Tree:
    """Return a work folder with a file, and with links by their names."""
    found = {"/app/file": Entry(tarfile.REGTYPE, 0o644, 0, 0, "digest")}
    return found | {
        f"/app/{name}": Entry(tarfile.SYMTYPE, 0o777, 0, 0, target)
        for name, target in links.items()
    }


@pytest.mark.parametrize(
    "links",
    [
        {"a": "/tests/expected"},
        {"a": "/tests"},
        {"a": "../tests/expected"},
        {"a": "/app/../solution/solve.sh"},
        {"a": "//logs/./verifier/reward.txt"},
        {"a": "/proc/self/root/tests/expected"},
        {"a": "/dev/stdin"},
        {"a": "/dev/fd/63"},
    ],
)
def test_a_link_to_what_is_the_tests(links: dict[str, str]) -> None:
    assert links_to_tests(tree(**links)) == {f"/app/{name}" for name in links}


@pytest.mark.parametrize(
    ("links", "leading"),
    [
        ({"d": "/", "a": "d/tests/expected"}, {"/app/a"}),
        ({"d": "..", "e": "d/d", "a": "e/../d/tests"}, set()),  # /d/..: the image has no /d
        ({"b": "/tests", "a": "b/expected"}, {"/app/a", "/app/b"}),
        ({"a": "b", "b": "a"}, set()),
        ({"a": "file", "b": "/testsuite/x", "c": "/dev/null", "d": "/logs/agent"}, set()),
    ],
)
def test_links_by_way_of_others(links: dict[str, str], leading: set[str]) -> None:
    assert links_to_tests(tree(**links)) == leading


COMPARING = f"{SCRIPT}cmp -s answer.txt /tests/expected && r=1 || r=0\n" + (
    "echo $r > /logs/verifier/reward.txt\n"
)
HOW = {
    "a link": "ln -s /tests/expected answer.txt",
    "a link by the root": "ln -s / d; ln -s d/tests/expected answer.txt",
    "a link by a process": "ln -s /proc/self/root/tests/expected answer.txt",
}


@pytest.mark.usefixtures("containers")
@pytest.mark.parametrize("where", [{}, {"keep_running": ["*"]}], ids=["fresh", "the agent's"])
def test_no_link_to_the_answer_is_followed(make_task: MakeTask, where: dict[str, Any]) -> None:
    path = make_task(files={"tests/test.sh": COMPARING, "tests/expected": "42\n"})
    *linked, solved = play(path, *([bash(how), "Done."] for how in HOW.values()), "oracle", **where)
    assert [record(trace)["removed"] for trace in linked] == [["/app/answer.txt"]] * len(HOW)
    assert [trace.reward for trace in linked] == [0.0] * len(HOW)
    assert solved.reward == 1.0
