"""A tool's JSON schema comes from the function's signature and docstring."""

from __future__ import annotations

import functools
import gc
import json
import math
import weakref
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from types import MethodType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, create_model

import vf
from vf.traces.tools import Tool

if TYPE_CHECKING:
    from fractions import Fraction


class Address(BaseModel):
    title: str
    zip: int


@dataclass
class Point:
    x: float
    y: float = 0.0


class Opaque:
    pass


def properties(fn: Callable[..., Any]) -> dict[str, Any]:
    found = Tool.from_function(fn).parameters["properties"]
    assert isinstance(found, dict)
    return found


def search(query: str, limit: int = 10) -> str:
    """Search the catalogue.

    Only titles are searched.

    Args:
        query: Words to
            look for.
        limit: Most results.
    """
    return query * limit


def test_a_function_that_is_bound_by_hand_needs_no_self() -> None:
    def look(shelf: list[str], place: int) -> str:
        return shelf[place]

    tool = Tool.from_function(MethodType(look, ["a"]))
    assert [*tool.parameters["properties"]] == ["place"]
    with pytest.raises(vf.ConfigError, match=r"tool '<lambda>' .*invalid method signature"):
        Tool.from_function(MethodType(lambda: "x", ["a"]))


def test_an_async_generator_is_no_tool() -> None:
    async def count(to: int) -> AsyncIterator[int]:
        yield to

    with pytest.raises(vf.ConfigError, match=r"tool 'count'.*async generator has no result"):
        Tool.from_function(count)


def test_a_default_that_json_cannot_hold_is_not_in_the_schema() -> None:
    def find(most: float = math.inf, between: tuple[float, float] = (-math.inf, 0.0)) -> str:
        return f"{between[0]} {most}"

    tool = Tool.from_function(find)
    json.dumps(tool.schema(), allow_nan=False)
    assert tool.parameters["properties"]["most"] == {"type": "number"}
    assert tool.fn(**tool.validate("{}")) == "-inf inf"


def test_docstring_and_signature_become_the_openai_schema() -> None:
    assert Tool.from_function(search).schema() == {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search the catalogue.\n\nOnly titles are searched.",
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "Words to\nlook for."},
                    "limit": {"type": "integer", "default": 10, "description": "Most results."},
                },
                "required": ["query"],
            },
        },
    }


def test_a_functions_schema_is_worked_out_once_and_keeps_nothing_alive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built: list[str] = []

    def counted(name: str, **settings: Any) -> Any:
        built.append(name)
        return create_model(name, **settings)

    monkeypatch.setattr("vf.traces.tools.create_model", counted)

    def make() -> tuple[Callable[..., str], weakref.ref[Opaque]]:
        held = Opaque()

        def look(key: str) -> str:
            return f"{key} {held}"

        return look, weakref.ref(held)

    look, held = make()
    for _ in range(3):  # as episodes offer it
        tool = Tool.from_function(look)
        assert (tool.fn, tool.validate('{"key": "a"}')) == (look, {"key": "a"})
    assert built == ["look_arguments"]
    del look, tool
    gc.collect()
    assert held() is None


def test_a_tool_without_parameters_or_docstring() -> None:
    def now() -> str:
        return "noon"

    built = Tool.from_function(now)
    assert built.description == ""
    assert built.parameters == {"type": "object", "properties": {}}
    assert built.validate("{}") == {}


def test_optional_literal_and_containers() -> None:
    def pick(
        unit: Literal["c", "f"],
        tags: list[str],
        counts: dict[str, int],
        note: str | None = None,
    ) -> None: ...

    found = properties(pick)
    assert found["unit"] == {"enum": ["c", "f"], "type": "string"}
    assert found["tags"] == {"type": "array", "items": {"type": "string"}}
    assert found["counts"] == {"type": "object", "additionalProperties": {"type": "integer"}}
    assert found["note"] == {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}


def test_models_and_dataclasses_are_described_and_arrive_as_objects() -> None:
    def move(to: Address, at: Point) -> None: ...

    built = Tool.from_function(move)
    address = built.parameters["$defs"]["Address"]
    assert address["properties"] == {"title": {"type": "string"}, "zip": {"type": "integer"}}
    assert built.validate('{"to": {"title": "x", "zip": 1}, "at": {"x": 2}}') == {
        "to": Address(title="x", zip=1),
        "at": Point(2.0, 0.0),
    }


def test_generated_titles_are_dropped_but_values_called_title_stay() -> None:
    def put(title: str, at: dict[str, Any] = {"title": "home"}) -> None: ...  # noqa: B006

    found = properties(put)
    assert found["title"] == {"type": "string"}
    assert found["at"]["default"] == {"title": "home"}
    assert "title" not in found["at"]


def test_a_description_in_annotated_is_kept_where_the_docstring_has_none() -> None:
    def wait(
        days: Annotated[int, Field(ge=1, description="How long.")],
        hours: Annotated[int, Field(description="old")] = 0,
    ) -> None:
        """Wait.

        Args:
            hours: And hours.
        """

    found = properties(wait)
    assert found["days"] == {"type": "integer", "minimum": 1, "description": "How long."}
    assert found["hours"]["description"] == "And hours."


def test_any_parameter_name_works() -> None:
    def odd(schema: int, _x: int, model_config: int, copy: int = 4, json: int = 5) -> None: ...

    built = Tool.from_function(odd)
    assert list(built.parameters["properties"]) == ["schema", "_x", "model_config", "copy", "json"]
    assert built.validate('{"schema": 1, "_x": 2, "model_config": 3}') == {
        "schema": 1,
        "_x": 2,
        "model_config": 3,
        "copy": 4,
        "json": 5,
    }


def test_a_mutable_default_is_not_shared_between_calls() -> None:
    def collect(into: list[int] = []) -> None: ...  # noqa: B006

    built = Tool.from_function(collect)
    built.validate("{}")["into"].append(1)
    assert built.validate("{}") == {"into": []}


class Shop(vf.Environment):
    @vf.tool
    def price(self, item: str) -> int:
        """Look up a price."""
        return len(item)

    @vf.tool
    @staticmethod
    def outer(item: str) -> str:
        return item

    @staticmethod
    @vf.tool
    def inner(item: str) -> str:
        return item

    @classmethod
    @vf.tool
    def made(cls, item: str) -> str:
        return item

    def secret(self, item: str) -> str:
        return item


def test_marked_methods_of_every_kind_are_tools_without_self() -> None:
    tools = Shop().toolbox.tools
    assert sorted(tools) == ["inner", "made", "outer", "price"]
    for built in tools.values():
        assert list(built.parameters["properties"]) == ["item"]
    assert tools["price"].fn("abc") == 3


def no_type(a: int, b) -> None: ...  # type: ignore[no-untyped-def]
def stars(*names: str) -> None: ...
def keywords(**names: str) -> None: ...
def positional(first: int, /) -> None: ...
def opaque(thing: Opaque) -> None: ...
def callback(then: Callable[[int], int]) -> None: ...
def unresolved(part: Fraction) -> None: ...


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (no_type, ["no_type", "'b'", "no type"]),
        (stars, ["stars", "*args"]),
        (keywords, ["keywords", "**kwargs"]),
        (positional, ["positional", "'first'", "positional-only"]),
        (opaque, ["opaque", "Opaque"]),
        (callback, ["callback", "JSON schema"]),
        (unresolved, ["unresolved", "Fraction"]),
        (Shop.price, ["price", "bound to self"]),
        (functools.partial(search, limit=2), ["partial", "annotations"]),
    ],
)
def test_a_function_that_cannot_be_a_tool_is_a_config_error(
    fn: Callable[..., Any], words: list[str]
) -> None:
    with pytest.raises(vf.ConfigError) as caught:
        Tool.from_function(fn)
    for word in words:
        assert word in str(caught.value)
