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
THEIRS = (TESTS, SOLUTION, VERIFIER, "/proc", "/dev/fd", "/dev/stdin")
MOST_HOPS = 40  # as in the kernel


def links_to_theirs(tree: Tree) -> set[str]:
    """Return the links that lead to what is the tests', also by way of other links of the tree."""
    links = (path for path, entry in tree.items() if entry.kind == tarfile.SYMTYPE)
    return {path for path in links if _leads_there(tree, path)}


def _leads_there(tree: Tree, link: str) -> bool:
    todo, place, hops = deque(link.split("/")), "", 0
    while todo:
        name = todo.popleft()
        if name in ("", "."):
            continue
        if name == "..":
            place = place.rpartition("/")[0]
            continue
        place = f"{place}/{name}"
        if within(place, THEIRS):
            return True
        entry = tree.get(place)
        if entry is None or entry.kind != tarfile.SYMTYPE:
            continue
        hops += 1
        if hops > MOST_HOPS:
            return False  # nothing opens it
        place = "" if entry.content.startswith("/") else place.rpartition("/")[0]
        todo.extendleft(reversed(entry.content.split("/")))
    return False
