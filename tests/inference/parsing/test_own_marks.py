"""A call's arguments may hold the marks of its own form: they are parsed, not searched for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.inference.parsing.forms import FORMS, Call, Form, tools_of
from vf.inference.parsing.families import PARSERS
from vf.inference.parsing.json_calls import TEXT_CALLS
from vf.traces.messages import Message

TAGS = ("<tool_call>", "</tool_call>")
MARKS: dict[str, tuple[str, ...]] = {
    "cohere": ("<|START_ACTION|>", "<|END_ACTION|>", "<|START_RESPONSE|>"),
    "command-r": ("Action: ```json", "```", "```json"),
    "deepseek": (
        *("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),
        "```",
    ),
    "functiongemma": ("<start_function_call>", "<end_function_call>"),
    "gemma4": ("<|tool_call>", "<tool_call|>", "<channel|>"),
    "glm": TAGS,
    "granite3": ("<|tool_call|>", "<|tool_call|>[]"),
    "harmony": ("<|call|>", "<|end|>", "<|return|>", "<|start|>", "<|start|>assistant<|message|>"),
    "hermes": (*TAGS, "<tool_call>{}</tool_call>"),
    "kimi": ("<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_calls_section_end|>"),
    "lfm2": ("<|tool_call_start|>", "<|tool_call_end|>"),
    "llama3": ("<|python_tag|>", '; {"name": "f", "parameters": {}}'),
    "minimax": ("</invoke>", "<minimax:tool_call>", "</minimax:tool_call>"),
    "mistral": ("[TOOL_CALLS]", "[TOOL_CALLS]f[ARGS]{}", "[CALL_ID]"),
    "muse": ("</atem:invoke>", "</atem:function_calls>", "<|eom|>", "<|eot|>", "<|start|>"),
    "nemotron-v2": ("<TOOLCALL>", "</TOOLCALL>", "<TOOLCALL>[]</TOOLCALL>"),
    "olmo3": ("<function_calls>", "</function_calls>"),
    "phi4": ("<|tool_call|>", "<|/tool_call|>", "functools["),
    "qwen-xml": (*TAGS, "</function></tool_call"),
    "seed": ("<seed:tool_call>", "</seed:tool_call>"),
}


def read(form: Form, text: str, calls: list[Call]) -> list[Call]:
    parser = PARSERS[form.family]
    return made(parser.parse(text, id_prefix="call", tools=tools_of(calls)))


def made(message: Message) -> list[Call]:
    assert [call.malformed for call in message.tool_calls] == [None] * len(message.tool_calls)
    assert message.content == ""
    return [(call.name, json.loads(call.arguments)) for call in message.tool_calls]


def holding(mark: str) -> dict[str, Any]:
    return {"text": f"end it with {mark}", "more": f"{mark} begins, {mark * 3} ends\n{mark}"}


STAND_IN = "MARK"  # what renders a template looks for the marks itself


def with_stand_in(given: dict[str, Any], mark: str) -> dict[str, Any]:
    return {key: value.replace(mark, STAND_IN) for key, value in given.items()}


def test_every_family_has_marks() -> None:
    assert set(MARKS) == set(PARSERS)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_a_text_may_hold_the_marks_of_its_own_form(form: Form) -> None:
    for mark in MARKS[form.family]:
        calls: list[Call] = [("first", holding(mark)), ("second", {"text": mark})]
        calls = calls if form.parallel else calls[:1]
        text = form.write("", "", [(name, with_stand_in(given, mark)) for name, given in calls])
        text = text.replace(STAND_IN, json.dumps(mark)[1:-1] if '"' in mark else mark)
        assert read(form, text, calls) == calls, mark


ESCAPED = ("cohere", "hermes", "kimi", "mistral", "nemotron-v2", "phi4", "command-r", "deepseek")


@pytest.mark.parametrize(
    "form", [form for form in FORMS if form.family in ESCAPED], ids=lambda form: form.name
)
def test_a_text_may_hold_a_whole_call_of_its_form(form: Form) -> None:
    inner = form.write("", "", [("inner", {"a": 1})])
    calls: list[Call] = [("outer", {"text": inner, "twice": inner + inner})]
    assert read(form, form.write("", "", calls), calls) == calls


def test_calls_in_the_text_may_hold_their_marks() -> None:
    calls: list[Call] = [("first", holding("</tool_call>")), ("second", holding("<tool_call>"))]
    text = "".join(
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': given})}\n</tool_call>"
        for name, given in calls
    )
    assert made(TEXT_CALLS.parse(text, id_prefix="call")) == calls


@pytest.mark.parametrize(
    ("family", "text"),
    [
        (
            "qwen-xml",
            "<tool_call><function=f><parameter=a>1</function></tool_call>"
            "<tool_call><function=g><parameter=b>2</parameter></function></tool_call>",
        ),
        (
            "glm",
            "<tool_call>f<arg_key>a</arg_key><arg_value>1</tool_call>"
            "<tool_call>g<arg_key>b</arg_key><arg_value>2</arg_value></tool_call>",
        ),
        (
            "minimax",
            '<invoke name="f"><parameter name="a">1</invoke>'
            '<invoke name="g"><parameter name="b">2</parameter></invoke>',
        ),
        (
            "lfm2",
            "<|tool_call_start|>[f(a='1)]<|tool_call_end|>"
            "<|tool_call_start|>[g(b=2)]<|tool_call_end|>",
        ),
        ("hermes", '<tool_call>{"name": "f</tool_call><tool_call>{"name": "g"}</tool_call>'),
        (
            "muse",
            " to=f<|message|>{}<|eom|><|start|>assistant to=g<|message|>"
            '<atem:invoke name="g"></atem:invoke>',
        ),
        (
            "harmony",
            "<|channel|>commentary to=functions.f<|message|>{<|end|><|start|>assistant"
            "<|channel|>commentary to=functions.g<|message|>{}",
        ),
    ],
)
def test_a_broken_call_does_not_take_the_next_one_with_it(family: str, text: str) -> None:
    first, second = PARSERS[family].parse(text, id_prefix="call").tool_calls
    assert first.malformed is not None
    assert (second.name, second.malformed) == ("g", None)


def nasty(mark: str) -> list[dict[str, Any]]:
    """Return arguments in which a mark stands where a search for it would end the call."""
    nested = json.dumps({"x": json.dumps({"y": f'{mark}"q"'})})
    return [
        {"text": mark},
        {"text": f"it's {mark}, isn't it\u2028{mark} \\ é 😀"},
        {"items": [mark, {"k": f'"{mark}'}]},
        {"code": f"```\nprint('{mark}')  # \"{mark}\"\n```<![CDATA[{mark}]]>"},
        # LFM2's template escapes nothing: it writes these as it does texts without backslashes.
        {"text": f'say \\"{mark}\\" and "{mark}"'},
        {"text": nested},
    ]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_marks_may_be_quoted_nested_or_in_code(form: Form) -> None:
    for mark in (mark for mark in MARKS[form.family] if '"' not in mark):
        for given in nasty(mark)[: 4 if form.family == "lfm2" else None]:
            calls: list[Call] = [("first", given), ("second", {"n": 1})]
            calls = calls if form.parallel else calls[:1]
            stand_in = json.loads(json.dumps(given).replace(mark, STAND_IN))
            text = form.write("", "", [("first", stand_in), *calls[1:]]).replace(STAND_IN, mark)
            assert read(form, text, calls) == calls, (mark, given)


@pytest.mark.parametrize(
    "form", [form for form in FORMS if form.family in ESCAPED], ids=lambda form: form.name
)
def test_a_mark_may_be_escaped_or_stand_in_a_key(form: Form) -> None:
    for mark in (mark for mark in MARKS[form.family] if mark.isascii() and '"' not in mark):
        text = form.write("", "", [("first", {STAND_IN: 1, "text": f"z{STAND_IN}"})])
        calls: list[Call] = [("first", {mark: 1, "text": f"z{mark}"})]
        for escaped in (
            mark,
            mark.replace("/", "\\/"),
            mark.replace("<", "\\u003c"),
            "".join(f"\\u{ord(character):04x}" for character in mark),
        ):
            assert read(form, text.replace(STAND_IN, escaped), calls) == calls, escaped


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_an_answer_cut_within_a_call_makes_no_other_call(form: Form) -> None:
    calls: list[Call] = [("first", {"text": f"a {STAND_IN} b", "n": 3})]
    text = form.write("", "", calls)
    # A mark that holds a whole call is one, where what is around it is cut off.
    for mark in (mark for mark in MARKS[form.family] if '"' not in mark and "]f[" not in mark):
        whole = text.replace(STAND_IN, mark)
        wanted = [("first", {"text": f"a {mark} b", "n": 3})]
        for length in range(len(whole)):
            answer = PARSERS[form.family].parse(
                whole[:length], id_prefix="call", tools=tools_of(calls)
            )
            for call in answer.tool_calls:
                if call.malformed is None:
                    assert (call.name, json.loads(call.arguments)) == wanted[0], whole[:length]


def test_a_call_that_ends_within_its_text_is_not_closed() -> None:
    text = '<tool_call>{"name": "f", "arguments": {"text": "end it with </tool_call>"}}'
    (call,) = PARSERS["hermes"].parse(text, id_prefix="call").tool_calls
    assert call.malformed == "it was not closed with </tool_call>"


@pytest.mark.parametrize("quoted", [True, False])
@pytest.mark.parametrize(
    ("name", "mark"),
    [
        ("qwen3", "<tool_call>"),
        ("qwen3_5_nothink", "<tool_call>"),
        ("glm4moe", "<tool_call>"),
        ("lfm2_2_5", "<|tool_call_start|>"),
        ("olmo-3", "<function_calls>"),
        ("kimi-k2", "<|tool_call_begin|>"),
        ("deepseek-v3.1", "<｜tool▁call▁begin｜>"),
    ],
)
def test_a_call_is_not_lost_in_a_sentence_that_names_its_mark(
    name: str, mark: str, quoted: bool
) -> None:
    (form,) = (form for form in FORMS if form.name == name)
    calls: list[Call] = [("first", {"text": "abc"})]
    said = f"I will write `{mark}` now." if quoted else f"I will write {mark} now."
    message = PARSERS[form.family].parse(
        form.write("", said, calls), id_prefix="call", tools=tools_of(calls)
    )
    whole = [call for call in message.tool_calls if call.malformed is None]
    assert [(call.name, json.loads(call.arguments)) for call in whole] == calls
    assert len(message.tool_calls) == (1 if quoted else 2)  # what is not quoted is reported
    assert not quoted or message.content == said


@pytest.mark.parametrize("family", ["hermes", "nemotron-v2", "phi4"])
def test_another_familys_key_holds_the_arguments(family: str) -> None:
    opener, closer = {
        "hermes": TAGS,
        "nemotron-v2": ("<TOOLCALL>", "</TOOLCALL>"),
        "phi4": ("<|tool_call|>", "<|/tool_call|>"),
    }[family]
    text = f'{opener}{{"name": "f", "parameters": {{"a": 1}}}}{closer}'
    (call,) = PARSERS[family].parse(text, id_prefix="call").tool_calls
    assert (call.name, json.loads(call.arguments)) == ("f", {"a": 1})


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ('"args": {"a": 1}', "it has 'args', but its arguments belong in 'arguments'"),
        ('"a": 1', "it has 'a', but"),
        ('"arguments": {}, "parameters": {"a": 1}', "it has both 'arguments' and 'parameters'"),
    ],
)
def test_arguments_are_never_dropped_in_silence(given: str, reason: str) -> None:
    text = f'<tool_call>{{"name": "f", {given}}}</tool_call>'
    (call,) = PARSERS["hermes"].parse(text, id_prefix="call").tool_calls
    assert call.malformed is not None
    assert reason in call.malformed
