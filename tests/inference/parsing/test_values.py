"""Bare text becomes what the schema wants, where the schema says what that is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from vf.inference.parsing.families import parser_for
from vf.inference.parsing.values import parameter_schemas, read_value

TEXT = {"type": "string"}
NUMBER_OR_NOTHING = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
TEXT_OR_NOTHING = {"anyOf": [TEXT, {"type": "null"}]}


def read(text: str, schema: Any, **more: Any) -> Any:
    return read_value(text, "x", {"type": "object", "properties": {"x": schema}, **more})


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("5", TEXT, "5"),
        ("null", TEXT, "null"),
        ("[1]", TEXT, "[1]"),
        (" 5 ", TEXT, " 5 "),
        ("5", {"type": "integer"}, 5),
        (" 5\n", {"type": "integer"}, 5),
        ("5", {"type": "number"}, 5),
        ("2.5", {"type": "integer"}, 2.5),
        ("five", {"type": "integer"}, "five"),
        ("True", {"type": "boolean"}, True),
        ("false", {"type": "boolean"}, False),
        ("None", NUMBER_OR_NOTHING, None),
        ("7", NUMBER_OR_NOTHING, 7),
        ("None", TEXT_OR_NOTHING, None),
        ("7", TEXT_OR_NOTHING, "7"),
        ("7", {"type": ["string", "number"]}, 7),
        ("[7]", {"type": ["string", "number"]}, "[7]"),
        ('{"a": [1]}', {"type": "object"}, {"a": [1]}),
        ("{'a': 1}", {"type": "object"}, "{'a': 1}"),
        ("1", {"enum": ["1", "2"]}, "1"),
        ("1", {"enum": [1, 2]}, 1),
        ("1", {"const": "1"}, "1"),
        ("1", {"allOf": [{"description": "x"}, TEXT]}, "1"),
        ("1", {"oneOf": [TEXT, {"type": "object"}]}, "1"),
        ("1", {"anyOf": [TEXT, {}]}, 1),
        ("1", {"$ref": "#/$defs/Id"}, "1"),
        ("1", {"$ref": "#/$defs/Missing"}, 1),
        ("1", {"$ref": "#/$defs/Loop"}, 1),
        ("1", {}, 1),
        ("1", True, 1),
        ("1", {"type": 5, "enum": 5, "anyOf": 5, "allOf": 5}, 1),
        ('"1"', {}, '"1"'),
        ("NaN", {}, "NaN"),
        ("Infinity", {"type": "number"}, "Infinity"),
        ("9" * 5000, {"type": "integer"}, "9" * 5000),
        ("[" * 100_000, {"type": "array"}, "[" * 100_000),
        ("", {"type": "integer"}, ""),
    ],
)
def test_a_value_is_read_as_its_schema_wants(text: str, schema: Any, value: Any) -> None:
    found = read(text, schema, **{"$defs": {"Id": TEXT, "Loop": {"$ref": "#/$defs/Loop"}}})
    assert (found, type(found)) == (value, type(value))


def test_without_a_schema_text_is_taken_as_json_if_it_is_json() -> None:
    assert read_value("5", "x", {}) == 5
    assert read_value("05", "x", {}) == "05"
    assert read_value("5", "other", {"properties": {"x": TEXT}}) == 5


def test_schemas_are_found_in_either_shape_and_nonsense_is_left_out() -> None:
    function = {"name": "f", "parameters": {"type": "object"}}
    tools: list[dict[str, Any]] = [
        {"type": "function", "function": function},
        {"name": "g", "parameters": {}},
        {"type": "function", "function": {"name": "no parameters"}},
        {"function": 5},
        {},
    ]
    schema_of = parameter_schemas(tools)
    names = ("f", "g", "no parameters", "unknown")
    assert [schema_of(name) for name in names] == [{"type": "object"}, {}, {}, {}]


class Unread(list[dict[str, Any]]):
    def __iter__(self) -> Iterator[dict[str, Any]]:
        raise AssertionError("the tools were read")


@pytest.mark.parametrize(
    "answer",
    [
        "No call.",
        '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>',  # says its types itself
    ],
)
def test_an_answer_whose_values_say_their_types_costs_nothing_for_the_tools(answer: str) -> None:
    message = parser_for("<tool_call>").parse(answer, id_prefix="c", tools=Unread([{}]))
    assert [call.name for call in message.tool_calls] == (["f"] if "call>" in answer else [])
