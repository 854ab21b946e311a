"""What the repositories are made of: modules, their tests, and the bugs that can be put in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from vf.rubrics.outcomes.grading import Case

BugKind = Literal[
    "off_by_one",
    "wrong_comparison",
    "swapped_arguments",
    "missing_return",
    "mutable_default",
    "wrong_operator",
    "inverted_condition",
    "missing_edge_case",
    "early_return",
    "wrong_variable",
    "aliasing",
]
BUG_KINDS: tuple[BugKind, ...] = get_args(BugKind)


@dataclass(frozen=True, slots=True)
class Bug:
    """A change that breaks a module.

    Attributes:
        kind: What kind of mistake it is.
        old: A piece of the right source, which is in it once.
        new: What takes its place.
    """

    kind: BugKind
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Module:
    """A module that is right, and how it can be tested and broken.

    Attributes:
        name: Its name.
        about: What it does, for the repository's README.
        source: Its code, which imports nothing but the standard library.
        visible: Tests that the repository holds; each bug fails one of them at least.
        hidden: Tests that grade; each bug fails one of them at least.
        bugs: What can be wrong.
    """

    name: str
    about: str
    source: str
    visible: list[Case]
    hidden: list[Case]
    bugs: list[Bug]

    def broken(self, bug: Bug) -> str:
        """Return the source with a bug in it."""
        return self.source.replace(bug.old, bug.new)
