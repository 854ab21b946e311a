"""The model's arguments are checked strictly, and what is wrong is said in words for the model."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vf.tools.tool_box import render_result
from vf.traces.tools import ArgumentError, Tool


class Colour(StrEnum):
    RED = "red"


def typed(
    n: int, x: float = 0.5, flag: bool = False, word: str = "w", names: list[str] | None = None
) -> None: ...


TYPED = Tool.from_function(typed)


def fault(arguments: str, tool: Tool = TYPED) -> tuple[str, str]:
    with pytest.raises(ArgumentError) as caught:
        tool.validate(arguments)
    return caught.value.fault, str(caught.value)


@given(
    st.fixed_dictionaries(
        {"n": st.integers(-(10**30), 10**30)},
        optional={
            "x": st.floats(allow_nan=False, allow_infinity=False),
            "flag": st.booleans(),
            "word": st.text(),
            "names": st.none() | st.lists(st.text(), max_size=3),
        },
    )
)
@settings(deadline=None, max_examples=25)
def test_arguments_that_fit_come_back_as_they_were(arguments: dict[str, Any]) -> None:
    defaults = {"x": 0.5, "flag": False, "word": "w", "names": None}
    assert TYPED.validate(json.dumps(arguments)) == defaults | arguments


@pytest.mark.parametrize(
    "text",
    [
        *("", "nope", '{"n": 1', "{'n': 1}", '{"n": 1}{'),
        *('{"n": NaN}', '{"n": 1, "x": -Infinity}', '{"n": 1, "word": "\\ud800"}'),
        pytest.param("[" * 100_000, id="deep"),
        pytest.param('{"n": ' + "9" * 5000 + "}", id="long number"),
    ],
)
def test_what_is_not_json_is_invalid_json(text: str) -> None:
    assert fault(text)[0] == "invalid_json"


@pytest.mark.parametrize("text", ["[1]", '"n"', "1", "null"])
def test_what_is_not_an_object_is_refused(text: str) -> None:
    assert fault(text) == ("invalid_arguments", "the arguments must be a JSON object")


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"n": "5"}, "n"),
        ({"n": 5.5}, "n"),
        ({"n": True}, "n"),
        ({"n": None}, "n"),
        ({"n": 1, "x": "0.5"}, "x"),
        ({"n": 1, "flag": 1}, "flag"),
        ({"n": 1, "flag": "true"}, "flag"),
        ({"n": 1, "word": 7}, "word"),
        ({"n": 1, "names": "a"}, "names"),
        ({"n": 1, "names": ["a", 2]}, "names.1"),
    ],
)
def test_types_are_strict_and_the_argument_is_named(arguments: dict[str, Any], name: str) -> None:
    kind, message = fault(json.dumps(arguments))
    assert kind == "invalid_arguments"
    assert message.startswith(f"{name}: ")
    assert "got" in message


def test_a_number_too_large_for_a_float_is_refused() -> None:
    kind, message = fault('{"n": 1, "x": 1e999}')
    assert kind == "invalid_arguments"
    assert message.startswith("x: ")


def test_all_faults_are_reported_at_once() -> None:
    kind, message = fault('{"x": "a", "colour": 1}')
    assert kind == "invalid_arguments"
    assert "missing argument 'n'" in message
    assert "unexpected argument 'colour'" in message
    assert "x: " in message


def test_arguments_nested_too_deeply_for_their_schema_are_the_models_fault() -> None:
    def deep(value: Any) -> str:
        return "".join(deep(each) for each in value.values())

    tool = Tool.from_schema("t", "d", {"type": "object"}, print, deep)
    assert tool.validate("{}") == {}
    text = '{"a":' * 600 + "{}" + "}" * 600
    assert fault(text, tool)[0] == "invalid_json"


def test_enums_and_literals_take_their_json_values_only() -> None:
    def paint(colour: Colour, side: Literal["left", "right"]) -> None: ...

    tool = Tool.from_function(paint)
    assert tool.validate('{"colour": "red", "side": "left"}') == {
        "colour": Colour.RED,
        "side": "left",
    }
    _, message = fault('{"colour": "blue", "side": "up"}', tool)
    assert "'red'" in message
    assert "'left' or 'right'" in message


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is", "as it is"),
        (None, "done"),
        (3, "3"),
        (True, "true"),
        ({"a": [1, (2, "é")]}, '{"a":[1,[2,"é"]]}'),
        (Colour.RED, "red"),
        ({"type": "image", "name": "debian"}, '{"type":"image","name":"debian"}'),
    ],
)
def test_results_become_text(value: object, text: str) -> None:
    assert render_result(value) == text


def test_a_number_of_thousands_of_digits_is_rendered_too() -> None:
    assert render_result(10**5000) == "1" + "0" * 5000


def test_a_result_that_is_not_json_becomes_its_str() -> None:
    class Thing:
        def __str__(self) -> str:
            return "a thing"

    assert render_result(Thing()) == "a thing"


class Picture:
    """Draws itself, as PIL's do in a notebook."""

    def _repr_png_(self) -> bytes:
        return b"png"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"\xff", "returned bytes; return text"),
        (bytearray(b"text"), "returned bytearray; return text"),
        (Picture(), "returned an image .Picture., where only text"),
        ([{"type": "text", "text": "a"}, Picture()], "returned an image .list., where only text"),
        ([{"type": "image_url", "image_url": {"url": "data:"}}], "where only text can be shown"),
        (
            {"type": "image", "data": "iVBO", "mimeType": "image/png"},
            "where only text can be shown",
        ),
        (object(), "returned an object of object; return text, or what JSON can hold"),
    ],
)
def test_a_result_that_no_model_can_read_is_refused(value: object, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        render_result(value)
