"""JSON that has to fit a schema."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rubrics.one_answer import score
from vf.rubrics.outcomes import json_schema, marked
from vf.runtime.errors import ConfigError, RubricError
from vf.testing import FakeServer, Response

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 1}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
RIGHT = '{"name": "Ada", "age": 36}'


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        (RIGHT, 1.0),
        (f"Here it is:\n```json\n{RIGHT}\n```\nDone.", 1.0),
        ('{"name": "Ada", "age": "36"}', 0.0),
        ('{"name": "Ada", "age": 36, "x": 1}', 0.0),
        ('{"name": "Ada", "age": 36, "age": 36}', 0.0),
        (f"{RIGHT} {RIGHT}", 0.0),
        (f"```\n{RIGHT}\n```\n```\n[]\n```", 0.0),
        (f"```json\n{RIGHT}", 0.0),
        ('{"name": "Ada", "age": NaN}', 0.0),
        ("[" * 50_000, 0.0),
        ("[" * 9_000 + "]" * 9_000, 0.0),
        ("", 0.0),
    ],
)
def test_the_answer_must_be_one_valid_value(reply: str, value: float) -> None:
    assert score(json_schema(PERSON), reply, None) == value


def test_the_schema_may_be_the_tasks_own() -> None:
    assert score(json_schema("schema"), RIGHT, None, schema=PERSON) == 1.0
    assert score(json_schema("schema"), "[]", None, schema=PERSON) == 0.0


def test_the_value_may_have_to_equal_the_answer() -> None:
    outcome = json_schema(PERSON, compare=True)
    assert score(outcome, '{"age": 36, "name": "Ada"}', {"name": "Ada", "age": 36}) == 1.0
    assert score(outcome, RIGHT, {"name": "Ada", "age": 37}) == 0.0
    assert score(json_schema({}, compare=True, extract=marked()), "Answer: true", 1) == 0.0


def test_a_pattern_that_backtracks_for_ever_is_bounded() -> None:
    schema = {"type": "string", "pattern": "^(a+)+$"}
    assert score(json_schema(schema, timeout=30.0), '"aaaa"', None) == 1.0
    assert score(json_schema(schema, timeout=0.3), '"' + "a" * 60 + '!"', None) == 0.0


@pytest.mark.parametrize("depth", [500, 900, 985])
def test_deep_json_is_right_or_wrong_and_never_an_error(depth: int) -> None:
    outcome = json_schema({"type": "array", "items": {"type": "string", "pattern": "^a"}})
    assert score(outcome, "[" * depth + "]" * depth, None) == 0.0


@pytest.mark.parametrize("number", ["1e400", "-1e400", "1" + "0" * 4000])
@pytest.mark.parametrize("step", [0.01, 0.5])
def test_a_number_too_large_to_be_checked_does_not_fit(number: str, step: float) -> None:
    outcome = json_schema({"type": "number", "multipleOf": step})
    assert score(outcome, "1.5", None) == 1.0
    assert score(outcome, number, None) == 0.0


def test_a_reference_elsewhere_is_never_fetched() -> None:
    with FakeServer(Response({})) as server:
        url = f"{server.url}/schema.json"
        with pytest.raises(RubricError, match=f"refers to '{url}'"):
            score(json_schema({"$ref": url}), "1", None)
    assert server.requests == []


@pytest.mark.parametrize(
    ("schema", "hint"), [({"type": "objekt"}, "objekt"), ([], "not an object")]
)
def test_a_schema_that_is_none_is_refused_at_load_time(schema: Any, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"json_schema: .*{hint}"):
        json_schema(schema)


@pytest.mark.parametrize("info", [{}, {"schema": {"type": 5}}])
def test_a_task_without_a_schema_is_an_error(info: dict[str, Any]) -> None:
    with pytest.raises(RubricError, match=r"'json_schema'.*the-task.*put one there"):
        score(json_schema(), RIGHT, None, **info)


def test_a_golden_answer_that_is_not_json_is_an_error() -> None:
    with pytest.raises(RubricError, match=r"'json_schema'.*the-task.*not JSON"):
        score(json_schema({}, compare=True), "1", {1, 2})
