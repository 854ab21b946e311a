"""What a chat template writes is read back as it was: every family, every kind of argument."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.inference.parsing.forms import ALIKE, FORMS, RENDERED, Call, Form, tools_of
from vf.inference.parsing.families import PARSERS
from vf.traces.messages import Message

ARGUMENTS: dict[str, dict[str, Any]] = {
    "none": {},
    "text": {"query": "weather in Paris"},
    "unicode": {"query": "naïve café, 東京 🌧️ ünïcode"},
    "quotes": {"say": "it's \"quoted\", isn't it?", "more": "'single'", "double": '"all"'},
    "line breaks": {"code": "def f():\n\n    return 1\n", "tab": "a\tb", "first": "\nx"},
    "angle brackets": {"html": "<b>1 < 2 && 3 > 2</b>", "tag": "</parameter> <x>"},
    "brackets": {"odd": "}], {(", "call": "f(x=1), g(y='2')", "colon": "a: b, c: {d}"},
    "spaces": {"padded": "  x  ", "empty": "", "blank": " "},
    "numbers": {"n": 5, "negative": -17, "float": 2.5, "small": 1e-07, "large": 10**20, "zero": 0},
    "texts of numbers": {"zip": "02134", "n": "5", "float": "2.50", "signed": "-1"},
    "texts of other values": {"b": "true", "n": "null", "o": '{"a": 1}', "l": "[1]", "p": "None"},
    "booleans": {"yes": True, "no": False},
    "null": {"nothing": None},
    "lists": {
        "tags": ["a", "b, c", "it's"],
        "numbers": [1, 2.5, -3],
        "empty": [],
        "deep": [[1], []],
    },
    "objects": {"where": {"city": "Paris", "at": {"lat": 48.85, "on": True}}, "empty": {}},
    "lists of objects": {"rows": [{"a": 1, "b": "x"}, {"a": None, "b": 'say "hi"\n'}]},
    "mixed": {"items": [True, None, "True", {"k": [False]}], "note": "last"},
}


def read(form: Form, text: str, calls: list[Call], *, in_reasoning: bool = False) -> Message:
    parser = PARSERS[form.family]
    return parser.parse(text, id_prefix="call_2", in_reasoning=in_reasoning, tools=tools_of(calls))


def read_calls(message: Message) -> list[Call]:
    assert [call.malformed for call in message.tool_calls] == [None] * len(message.tool_calls)
    return [(call.name, json.loads(call.arguments)) for call in message.tool_calls]


def named(form: Form) -> str:
    return form.name


@pytest.mark.slow
@pytest.mark.gate
def test_templates_left_out_write_what_another_one_writes() -> None:
    def written(form: Form) -> tuple[str, ...]:
        calls: list[Call] = [("get_it", ARGUMENTS["mixed"]), ("other", ARGUMENTS["quotes"])]
        return (
            form.family,
            form.write("Hm." if form.reasoning else "", "", calls[: 1 + form.parallel]),
            form.write("", "Let me look.", calls[: int(form.text)]),
        )

    known = {written(form) for form in FORMS}
    assert [form.name for form in RENDERED if written(form) not in known] == []
    assert {form.name for form in RENDERED} > ALIKE


@pytest.mark.parametrize("form", FORMS, ids=named)
def test_a_call_comes_back_as_it_was_made(form: Form) -> None:
    for kind, arguments in ARGUMENTS.items():
        calls: list[Call] = [("get_it", arguments)]
        message = read(form, form.write("", "", calls), calls)
        assert read_calls(message) == calls, kind
        assert message.content == "", kind
        assert message.tool_calls[0].id == "call_2_0", kind


@pytest.mark.parametrize("form", [form for form in FORMS if form.parallel], ids=named)
def test_parallel_calls_keep_their_order(form: Form) -> None:
    calls: list[Call] = [
        ("first", ARGUMENTS["mixed"]),
        ("second", {}),
        ("third_2", ARGUMENTS["quotes"]),
        ("fourth", ARGUMENTS["text"]),
    ]
    message = read(form, form.write("", "", calls), calls)
    assert read_calls(message) == calls
    assert [call.id for call in message.tool_calls] == [f"call_2_{n}" for n in range(4)]
    assert message.content == ""


@pytest.mark.parametrize("form", [form for form in FORMS if form.text], ids=named)
def test_text_and_a_call_are_distinguished(form: Form) -> None:
    calls: list[Call] = [("get_it", ARGUMENTS["objects"])]
    message = read(form, form.write("", "Let me look: 1 < 2.", calls), calls)
    assert message.content == "Let me look: 1 < 2."
    assert read_calls(message) == calls


@pytest.mark.parametrize("form", FORMS, ids=named)
def test_calls_and_reasoning_begin_with_a_mark(form: Form) -> None:
    for reasoning in {"", "Hm." if form.reasoning else ""}:
        written = form.write(reasoning, "", [("get_it", {})])
        assert written.lstrip()[0] in PARSERS[form.family].marks


@pytest.mark.parametrize("form", FORMS, ids=named)
def test_text_alone_makes_no_call(form: Form) -> None:
    text = 'The answer is {"x": 5}; see [1], <b>here</b>.'
    message = read(form, form.write("", text, []), [])
    assert (message.content, message.tool_calls) == (text, [])


@pytest.mark.parametrize("form", [form for form in FORMS if form.reasoning], ids=named)
def test_reasoning_is_distinguished_from_the_call(form: Form) -> None:
    calls: list[Call] = [("get_it", ARGUMENTS["text"])]
    message = read(form, form.write("First\nI look.", "", calls), calls)
    assert message.reasoning == "First\nI look."
    assert message.content == ""
    assert read_calls(message) == calls


@pytest.mark.parametrize("form", [form for form in FORMS if form.reasoning], ids=named)
def test_reasoning_may_have_been_opened_by_the_prompt(form: Form) -> None:
    calls: list[Call] = [("get_it", ARGUMENTS["text"])]
    before, opener, after = form.write("I look.", "", calls).partition(
        PARSERS[form.family].reasoning_opener
    )
    assert (before.strip(), bool(opener)) == ("", True)
    message = read(form, after, calls, in_reasoning=True)
    assert message.reasoning == "I look."
    assert read_calls(message) == calls


@pytest.mark.parametrize("form", [form for form in FORMS if form.reasoning], ids=named)
def test_reasoning_that_never_ends_calls_nothing(form: Form) -> None:
    calls: list[Call] = [("get_it", ARGUMENTS["text"])]
    inner = form.write("", "", calls).partition("</think>")
    thought = (inner[2] or inner[0]).strip("\n")  # some templates show that there was none
    parser = PARSERS[form.family]
    if form.family in ("harmony", "muse"):  # there another message ends the reasoning
        thought = "I look"
    message = read(form, f"{parser.reasoning_opener}{thought}", calls)
    assert message.reasoning == thought
    assert (message.content, message.tool_calls) == ("", [])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc_"), inner, max_size=3),
    max_leaves=6,
)
JSON_FORMS = [
    form
    for form in FORMS
    if form.family
    in ("deepseek", "harmony", "hermes", "kimi", "llama3", "mistral", "cohere", "nemotron-v2")
    and not form.name.endswith("_training")
]


@settings(max_examples=60)
@given(form=st.sampled_from(JSON_FORMS), value=JSON)
def test_any_json_comes_back_from_the_forms_that_write_json(form: Form, value: object) -> None:
    calls: list[Call] = [("get_it", {"v": value})]
    assert read_calls(read(form, form.write("", "", calls), calls)) == calls


BARE_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="<"), max_size=30)
BARE_FORMS = [form for form in FORMS if form.family in ("qwen-xml", "glm", "muse", "gemma4")]


@settings(max_examples=60)
@given(form=st.sampled_from(BARE_FORMS), text=BARE_TEXT, number=st.integers() | st.booleans())
def test_any_text_comes_back_from_the_forms_that_write_it_bare(
    form: Form, text: str, number: int
) -> None:
    calls: list[Call] = [("get_it", {"text": text, "number": number, "last": text})]
    assert read_calls(read(form, form.write("", "", calls), calls)) == calls
