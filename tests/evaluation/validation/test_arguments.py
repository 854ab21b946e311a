"""Random arguments fit the schema of any tool."""

from __future__ import annotations

import json
import random
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from vf.evaluation.validation.arguments import random_arguments
from vf.traces.tools import Tool


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Place(BaseModel):
    x: int
    y: float
    names: list[str] = []


def plain(a: int, b: float, c: str, d: bool, e: str = "x") -> None: ...
def bounded(a: Annotated[int, Field(ge=3, le=5)], b: Annotated[int, Field(gt=7, lt=9)]) -> None: ...
def chosen(a: Literal["+", "-"], b: Colour, c: Literal[3]) -> None: ...
def nested(a: Place, b: list[Place], c: dict[str, int], d: Place | None) -> None: ...
def lists(a: Annotated[list[int], Field(min_length=2)], b: int | str) -> None: ...
def nothing() -> None: ...


@pytest.mark.parametrize("function", [plain, bounded, chosen, nested, lists, nothing])
def test_they_fit(function: Any) -> None:
    tool = Tool.from_function(function)
    seen = set()
    for seed in range(100):
        arguments = json.dumps(random_arguments(tool.parameters, random.Random(seed)))
        tool.validate(arguments)  # raises if they do not
        seen.add(arguments)
    assert len(seen) > 1 or not tool.parameters["properties"]


def test_texts_are_filled_in_by_name_and_only_texts() -> None:
    schema = Tool.from_function(plain).parameters
    filled = random_arguments(schema, random.Random(0), {"c": "rm -rf tests", "a": "five"})
    assert filled["c"] == "rm -rf tests"
    assert isinstance(filled["a"], int)
