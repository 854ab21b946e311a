"""Symbolic links that lead from the agent's work to what belongs to the tests.

The tests read the work's files. Where one of them is a link to the answer that the tests compare it
with, or to their own input, it holds whatever is expected of it.
"""

from __future__ import annotations

import tarfile
from collections import deque

from vf.bridges.harbor.model import SOLUTION, TESTS, VERIFIER
from vf.sandbox.trees import Tree, within

# Nothing of this exists in what the agent sees; /proc and the rest have other content for others.
TEST_PATHS = (TESTS, SOLUTION, VERIFIER, "/proc", "/dev/fd", "/dev/stdin")
MAX_HOPS = 40  # as in the kernel


def links_to_tests(tree: Tree) -> set[str]:
    """Return the links that lead to what is the tests', also by way of other links of the tree."""
    links = (path for path, entry in tree.items() if entry.kind == tarfile.SYMTYPE)
    return {path for path in links if _leads_to_tests(tree, path)}


def _leads_to_tests(tree: Tree, link: str) -> bool:
    components, path, hops = deque(link.split("/")), "", 0
    while components:
        name = components.popleft()
        if name in ("", "."):
            continue
        if name == "..":
            path = path.rpartition("/")[0]
            continue
        path = f"{path}/{name}"
        if within(path, TEST_PATHS):
            return True
        entry = tree.get(path)
        if entry is None or entry.kind != tarfile.SYMTYPE:
            continue
        hops += 1
        if hops > MAX_HOPS:
            return False  # nothing opens it
        path = "" if entry.content.startswith("/") else path.rpartition("/")[0]
        components.extendleft(reversed(entry.content.split("/")))
    return False
