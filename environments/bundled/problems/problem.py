"""What a problem is, and how its inputs are drawn."""

from __future__ import annotations

import ast
import inspect
import random
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from vf.rubrics.outcomes.grading import Case
from vf.runtime.seeding import derive_seed

F = TypeVar("F", bound=Callable[..., Any])
Draw = Callable[[random.Random], tuple[Any, ...]]
_DRAWS = 200  # tries for each different input


@dataclass(frozen=True, slots=True)
class Problem:
    """A function to write.

    Attributes:
        reference: A right solution; its docstring is the statement, its signature is asked for.
        draw: Draws arguments: values with a literal, and results with one in JSON.
    """

    reference: Callable[..., Any]
    draw: Draw

    @property
    def name(self) -> str:
        """What the function is to be called."""
        return self.reference.__name__

    @property
    def statement(self) -> str:
        """What the function is to do."""
        return inspect.getdoc(self.reference) or ""

    @property
    def signature(self) -> str:
        """The function's first line."""
        return self.solution.splitlines()[0]

    @property
    def solution(self) -> str:
        """The reference solution as it could be handed in: no decorator, no docstring."""
        function = ast.parse(textwrap.dedent(inspect.getsource(self.reference))).body[0]
        assert isinstance(function, ast.FunctionDef)
        function.decorator_list = []
        function.body = function.body[1:]
        return ast.unparse(function)

    def call(self, arguments: Sequence[Any]) -> str:
        """Return the call with these arguments, as Python."""
        return f"{self.name}({', '.join(map(repr, arguments))})"

    def cases(self, count: int) -> list[Case]:
        """Return that many different tests, the same every time."""
        rng = random.Random(derive_seed("code-contest", self.name))
        cases: dict[str, Case] = {}
        for _ in range(_DRAWS * count):
            if len(cases) == count:
                break
            arguments = self.draw(rng)
            code = self.call(arguments)
            if code not in cases:
                cases[code] = Case(code, self.reference(*arguments))
        return list(cases.values())


class Shelf:
    """Problems in the order in which they were written."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def problem(self, draw: Draw) -> Callable[[F], F]:
        """Put the decorated reference solution on the shelf, with how to draw its arguments."""

        def add(reference: F) -> F:
            self.problems.append(Problem(reference, draw))
            return reference

        return add


def ints(rng: random.Random, size: tuple[int, int], low: int, high: int) -> list[int]:
    """Draw a list of numbers from ``low`` to ``high``, both included."""
    return [rng.randint(low, high) for _ in range(rng.randint(*size))]


def word(rng: random.Random, size: tuple[int, int], alphabet: str) -> str:
    """Draw a text."""
    return "".join(rng.choice(alphabet) for _ in range(rng.randint(*size)))


def words(rng: random.Random, count: tuple[int, int], size: tuple[int, int], abc: str) -> list[str]:
    """Draw a list of texts."""
    return [word(rng, size, abc) for _ in range(rng.randint(*count))]


def grid(rng: random.Random, side: tuple[int, int], cells: str) -> list[str]:
    """Draw rows of one length."""
    width = rng.randint(*side)
    return [word(rng, (width, width), cells) for _ in range(rng.randint(*side))]


def matrix(rng: random.Random, side: tuple[int, int], low: int, high: int) -> list[list[int]]:
    """Draw rows of numbers of one length."""
    width = rng.randint(*side)
    return [ints(rng, (width, width), low, high) for _ in range(rng.randint(*side))]


def edges(rng: random.Random, nodes: int, count: tuple[int, int]) -> list[list[int]]:
    """Draw pairs of different nodes, numbered from 0; a pair may come twice."""
    return [rng.sample(range(nodes), 2) for _ in range(rng.randint(*count))]
