"""Calls that cannot be read are kept, with the reason; none is ever read as another one."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.inference.parsing.forms import FORMS, Call, Form, tools_of
from vf.inference.parsing.families import PARSERS
from vf.traces.messages import Message
from vf.traces.task import Task
from vf.traces.trace import Trace

CALLS: list[Call] = [
    ("first", {"query": 'it\'s <b>1</b>, "x"', "n": 5, "rows": [{"a": None}, []]}),
    ("second", {"code": "x = {'a': 1}\n"}),
]


def parse(family: str, text: str, tools: Any = (), *, in_reasoning: bool = False) -> Message:
    return PARSERS[family].parse(text, id_prefix="c", in_reasoning=in_reasoning, tools=tools)


@pytest.mark.parametrize(
    ("family", "raw", "reason"),
    [
        ("qwen-xml", "<tool_call>\n<function=f>\n</function>", "not closed with </tool_call>"),
        ("qwen-xml", "<tool_call></tool_call>", "does not begin like"),
        ("qwen-xml", '<tool_call>{"name": "f"}</tool_call>', "does not begin like"),
        ("qwen-xml", "<tool_call><function=></function></tool_call>", "does not begin like"),
        ("qwen-xml", "<function=f><parameter=a>1</parameter></tool_call>", "is not closed"),
        (
            "qwen-xml",
            "<tool_call><function=f><parameter=a>1</function></tool_call>",
            "'a' is not closed",
        ),
        ("qwen-xml", "<tool_call><function=f>text</function></tool_call>", "is not an argument"),
        (
            "qwen-xml",
            "<tool_call><function=f>"
            + "<parameter=a>1</parameter>" * 2
            + "</function></tool_call>",
            "'a' is given twice",
        ),
        ("glm", "<tool_call>f\n<arg_key>a</arg_key>", "not closed with </tool_call>"),
        ("glm", "<tool_call>\n</tool_call>", "does not begin like"),
        ("glm", "<tool_call>f\n<arg_value>1</arg_value></tool_call>", "is not an argument"),
        ("glm", "<tool_call>two words</tool_call>", "is not an argument"),
        ("glm", "<tool_call>f<arg_key>a</arg_key><arg_value>1</tool_call>", "'a' is not closed"),
        ("minimax", '<minimax:tool_call>\n<invoke name="f">', "not closed with </invoke>"),
        ("minimax", "<invoke f></invoke>", "does not begin like"),
        ("minimax", '<invoke name="f"><parameter name="a">1</invoke>', "'a' is not closed"),
        ("minimax", '<invoke name="f">text</invoke>', "is not an argument"),
        ("seed", "<seed:tool_call><function=f></function>", "not closed with </seed:tool_call>"),
        ("seed", "<seed:tool_call>f()</seed:tool_call>", "does not begin like"),
        ("olmo3", '<function_calls>f(a="1")', "not closed with </function_calls>"),
        ("olmo3", "<function_calls>f(1)</function_calls>", "is not an argument"),
        ("olmo3", '<function_calls>f(a="1") or else</function_calls>', "is not closed"),
        ("olmo3", "<function_calls>f</function_calls>", "is not a call"),
        ("granite3", '<|tool_call|>[{"name": "f"', "JSON"),
        ("granite3", "<|tool_call|>f(1)", "JSON"),
        ("deepseek", "<｜tool▁calls▁begin｜>", "not closed with <｜tool▁call▁end｜>"),
        ("deepseek", "<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>", "not closed"),
        ("deepseek", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{}", "not closed"),
        ("deepseek", "<｜tool▁call▁begin｜>f{}<｜tool▁call▁end｜>", "has no <｜tool▁sep｜>"),
        ("deepseek", "<｜tool▁call▁begin｜><｜tool▁sep｜>{}<｜tool▁call▁end｜>", "no name"),
        (
            "deepseek",
            "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{a}<｜tool▁call▁end｜>",
            "not valid JSON",
        ),
        (
            "deepseek",
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n{}<｜tool▁call▁end｜>",
            "not valid JSON",
        ),
        ("kimi", "<|tool_calls_section_begin|>", "not closed"),
        ("kimi", "<|tool_call_begin|>functions.f:0<|tool_call_end|>", "argument_begin"),
        (
            "kimi",
            "<|tool_call_begin|>a b<|tool_call_argument_begin|>{}<|tool_call_end|>",
            "functions.NAME:INDEX",
        ),
        ("llama3", '{"name": "f", "parameters": {"a": 1}', "not valid JSON"),
        ("llama3", '<|python_tag|>print("hello")', "not valid JSON"),
        ("llama3", "<|python_tag|>", "not valid JSON"),
        ("llama3", "<|python_tag|>5", "not a JSON object"),
        ("llama3", '{"name": 5, "parameters": {}}', "no 'name'"),
        ("llama3", '{"name": ' + "[" * 100_000, "not valid JSON"),
        ("harmony", "<|channel|>commentary to=functions.f", "before its arguments"),
        ("harmony", " to=functions.f<|channel|>commentary json<|message|>{", "not valid JSON"),
        ("harmony", "<|channel|>commentary to=functions.<|message|>{}", "no name"),
        ("harmony", "<|channel|>analysis to=python<|message|>print(1)", "not valid JSON"),
        ("muse", " to=f", "no <atem:invoke>"),
        ("muse", " to=f<|message|>{}", "no <atem:invoke>"),
        ("muse", ' to=f<|message|><atem:invoke name="f">', "not closed with </atem:invoke>"),
        ("muse", "<atem:invoke></atem:invoke>", "does not begin like"),
        ("gemma4", "<|tool_call>call:f{a:1", "not closed with <tool_call|>"),
        ("gemma4", "<|tool_call>f{}<tool_call|>", "call:NAME"),
        ("gemma4", "<|tool_call>call:f{a:Paris}<tool_call|>", "not valid JSON"),
        ("gemma4", '<|tool_call>call:f{a:<|"|>x}<tool_call|>', "not valid JSON"),
        ("functiongemma", "<start_function_call>call:f{a:<escape>x<escape>}", "not closed"),
        ("cohere", '<|START_ACTION|>[{"tool_name": "f"}]', "not closed with <|END_ACTION|>"),
        ("cohere", '<|START_ACTION|>[{"name": "f"}]<|END_ACTION|>', "no 'tool_name'"),
        ("command-r", "Action: ```json\n[", "not closed with ```"),
        ("command-r", "Action: ```json\nf()\n```", "not valid JSON"),
        ("nemotron-v2", '<TOOLCALL>[{"name": "f"}]', "not closed with </TOOLCALL>"),
        ("nemotron-v2", "<TOOLCALL>5</TOOLCALL>", "not a JSON object"),
        ("phi4", 'functools[{"name": "f"}', "not valid JSON"),
        ("phi4", "<|tool_call|>", "not valid JSON"),
        ("mistral", "[TOOL_CALLS]", "not valid JSON"),
        ("mistral", "[TOOL_CALLS]f", "not valid JSON"),
        ("mistral", "[TOOL_CALLS]f[ARGS]{", "not valid JSON"),
        ("mistral", '[TOOL_CALLS] [{"arguments": {}}]', "no 'name'"),
        ("lfm2", "<|tool_call_start|>[f()]", "not closed with <|tool_call_end|>"),
        ("lfm2", "<|tool_call_start|>f()<|tool_call_end|>", "not a list"),
        ("lfm2", "<|tool_call_start|>[f]<|tool_call_end|>", "is not a call"),
        ("lfm2", "<|tool_call_start|>[f(1)]<|tool_call_end|>", "is not an argument"),
        ("lfm2", "<|tool_call_start|>[f(a=b)]<|tool_call_end|>", "not valid JSON"),
        ("lfm2", "<|tool_call_start|>[f(a='b)]<|tool_call_end|>", "is not closed"),
        ("lfm2", "<|tool_call_start|>[f(a=[1]<|tool_call_end|>", "not"),
        ("lfm2", "<|tool_call_start|>[f(a=1, a=2)]<|tool_call_end|>", "'a' is given twice"),
    ],
)
def test_a_call_that_cannot_be_read_is_kept_with_the_reason(
    family: str, raw: str, reason: str
) -> None:
    (call,) = parse(family, raw).tool_calls
    assert call.malformed is not None
    assert reason in call.malformed
    assert (call.id, call.name) == ("c_0", "")
    assert call.arguments in raw


@pytest.mark.parametrize(
    ("family", "text", "names"),
    [
        ("cohere", '<|START_ACTION|>[{"tool_name": "f"}, 5]<|END_ACTION|>', ["f", ""]),
        ("lfm2", "<|tool_call_start|>[f(), g(1), h()]<|tool_call_end|>", ["f", ""]),
        ("mistral", "[TOOL_CALLS]f[ARGS]{[TOOL_CALLS]g[ARGS]{}", ["", "g"]),
        ("llama3", '{"name": "f", "parameters": }\n{"name": "g", "parameters": {}}', ["", "g"]),
        ("llama3", '<|python_tag|>\n<|python_tag|>{"name": "g", "parameters": {}}', ["g"]),
        ("phi4", 'I use functools[0]. functools[{"name": "g"}]', ["", "g"]),
        ("phi4", 'functools[{"name": "f"}]\nfunctools[{"name": "g"}]', ["f", "g"]),
        ("phi4", '<|tool_call|> opens: functools[{"name": "g"}]', ["", "g"]),
        (
            "command-r",
            'I write Action: ``` now.\nAction: ```json\n[{"tool_name": "g"}]\n```',
            ["", "g"],
        ),
    ],
)
def test_one_bad_call_leaves_the_others(family: str, text: str, names: list[str]) -> None:
    assert [call.name for call in parse(family, text).tool_calls] == names


@pytest.mark.parametrize(
    ("family", "mark"), [("mistral", "[TOOL_CALLS]"), ("granite3", "<|tool_call|>")]
)
def test_of_a_list_each_bad_entry_is_kept_once(family: str, mark: str) -> None:
    calls = parse(family, f"{mark}[{'5, ' * 300}6]").tool_calls
    assert [call.arguments for call in calls] == ["5"] * 300 + ["6"]
    assert {call.malformed for call in calls} == {"it is not a JSON object"}


@pytest.mark.parametrize("escaped", ["\\'", '\\"'])
@pytest.mark.parametrize("value", ["1", "["])
def test_quotes_that_nothing_closes_are_looked_at_once(value: str, escaped: str) -> None:
    body = f"[f(x={value}{escaped * 50_000})]"  # looked at one by one: quadratic
    (call,) = parse("lfm2", f"<|tool_call_start|>{body}<|tool_call_end|>").tool_calls
    assert call.malformed is not None
    assert "is not closed" in call.malformed


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("llama3", '{"name": "Bob", "age": 5}'),
        ("llama3", 'Bob is {"name": "Bob", "parameters": {}}.'),
        ("llama3", '[{"name": "Bob"}]; {"age": 5};'),
        ("harmony", "plain text, to=you, <|odd|>"),
        ("muse", "plain text"),
        ("phi4", "the functools module"),
        ("cohere", "I say <|START_ACTION"),
    ],
)
def test_what_only_looks_like_a_call_is_text(family: str, text: str) -> None:
    message = parse(family, text)
    assert (message.content, message.tool_calls) == (text, [])


@pytest.mark.parametrize(
    ("family", "text", "content"),
    [
        ("harmony", "<|channel|>final<|message|>yes", "yes"),
        ("harmony", "<|channel|>final<|message|>yes<|end|>more", "yes\nmore"),
        ("harmony", "yes<|start|>assistant<|channel|>fi", "yes"),
        ("harmony", "<|start|>functions.f to=assistant<|channel|>commentary<|message|>5", "5"),
        ("muse", " to=user<|message|>yes", "yes"),
        ("cohere", "<|START_RESPONSE|>yes", "yes"),
        ("llama3", '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}} ;', ""),
        ("nemotron-v2", "yes<TOOLCALL>[]</TOOLCALL>", "yes"),
    ],
)
def test_the_text_is_what_is_left(family: str, text: str, content: str) -> None:
    assert parse(family, text).content == content


@pytest.mark.parametrize(
    ("family", "before", "tag", "after"),
    [
        (
            "qwen-xml",
            "<tool_call><function=f><parameter=a>\n",
            "</parameter>",
            "\n</parameter></function></tool_call>",
        ),
        (
            "glm",
            "<tool_call>f<arg_key>a</arg_key><arg_value>",
            "</arg_value>",
            "</arg_value>\n</tool_call>",
        ),
        (
            "muse",
            '<atem:invoke name="f"><atem:parameter name="a">',
            "</atem:parameter>",
            "</atem:parameter>\n</atem:invoke>",
        ),
    ],
)
def test_a_bare_value_may_hold_the_tag_that_closes_it(
    family: str, before: str, tag: str, after: str
) -> None:
    value = f"one {tag}\nand so on"
    (call,) = parse(family, before + value + after).tool_calls
    assert json.loads(call.arguments) == {"a": value}


@pytest.mark.parametrize("mark", ["\u2028", "\x85", "\x0c"])
def test_only_a_line_feed_ends_a_call_of_a_line(mark: str) -> None:
    text = f'<function_calls>f(a="one{mark}two")\ng(b=1)</function_calls>'
    f, g = parse("olmo3", text).tool_calls
    assert (f.name, json.loads(f.arguments)) == ("f", {"a": f"one{mark}two"})
    assert (g.name, g.arguments) == ("g", '{"b": 1}')


def test_python_lists_may_hold_escapes() -> None:
    (call,) = parse(
        "lfm2", r"""<|tool_call_start|>[f(a="it\'s\n\u00e9", b=['\'', "\""])]<|tool_call_end|>"""
    ).tool_calls
    assert json.loads(call.arguments) == {"a": "it's\né", "b": ["'", '"']}


@cache
def written(form: Form) -> str:
    return form.write("Hm.", "", CALLS if form.parallel else CALLS[:1])


INFERENCE_FORMS = [form for form in FORMS if not form.name.endswith("_training")]
MARKS = sorted(
    {
        *"{}[]()'\",:;=\n ",
        *("<think>", "</think>", "<tool_call>", "</tool_call>", "<function=f>", "</function>"),
        *("<parameter=a>", "</parameter>", "<arg_key>", "</arg_key>", "<arg_value>"),
        *(
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁call▁begin｜>",
            "<｜tool▁sep｜>",
            "<｜tool▁call▁end｜>",
        ),
        *("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"),
        *("<|start|>", "<|channel|>", "<|message|>", "<|end|>", " to=f", "analysis", "assistant"),
        *("[TOOL_CALLS]", "[ARGS]", "functools[", "Action: ```json", "```", "<|python_tag|>"),
        *("<|tool_call>", "<tool_call|>", '<|"|>', "call:f{", "<|START_ACTION|>", "<|END_ACTION|>"),
        *("<|tool_call_start|>[", "]<|tool_call_end|>", "f(a=", '{"name": "f", "parameters": '),
        *('<atem:invoke name="f">', "</atem:invoke>", '"\\ud800"', "NaN", "1e999", "None"),
    }
)


def can_be_kept(message: Message) -> bool:
    trace = Trace("e", Task("t", "p"), 0, messages=[message])
    return Trace.from_json(trace.to_json()).messages == [message]


@pytest.mark.parametrize("form", INFERENCE_FORMS, ids=lambda form: form.name)
def test_a_call_that_was_cut_off_is_neither_lost_nor_another_one(form: Form) -> None:
    text, tools = written(form), tools_of(CALLS)
    made = {(call.name, call.arguments) for call in parse(form.family, text, tools).tool_calls}
    named = text.index("first") + len("first")
    for end in range(len(text)):
        calls = parse(form.family, text[:end], tools).tool_calls
        good = [call for call in calls if call.malformed is None]
        assert {(call.name, call.arguments) for call in good} <= made
        assert calls or end < named


@settings(max_examples=80, deadline=None)
@given(
    family=st.sampled_from(sorted(PARSERS)),
    text=st.lists(st.sampled_from(MARKS) | st.text(max_size=6), max_size=25).map("".join),
    in_reasoning=st.booleans(),
)
def test_any_text_can_be_read_and_kept(family: str, text: str, in_reasoning: bool) -> None:
    text = text.encode("utf-8", "replace").decode()
    assert can_be_kept(parse(family, text, tools_of(CALLS), in_reasoning=in_reasoning))


@settings(max_examples=80, deadline=None)
@given(data=st.data(), form=st.sampled_from(INFERENCE_FORMS))
def test_a_spoilt_answer_can_be_read_and_kept(data: st.DataObject, form: Form) -> None:
    text = written(form)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(start + 20, len(text))))
    spoilt = text[:start] + data.draw(st.sampled_from(MARKS) | st.text(max_size=5)) + text[end:]
    spoilt = spoilt.encode("utf-8", "replace").decode()
    assert can_be_kept(parse(form.family, spoilt, tools_of(CALLS)))


@pytest.mark.parametrize("family", sorted(PARSERS))
@pytest.mark.parametrize(
    "mark", ["[", "{", "<", "(", "'", " ", ";", "\n", "<tool_call>", '{"name":']
)
def test_long_repetitions_are_read_in_good_time(family: str, mark: str) -> None:
    for text in (mark * 20_000, written_by(family) + mark * 20_000):
        assert can_be_kept(parse(family, text))


def written_by(family: str) -> str:
    return next(written(form)[:-5] for form in INFERENCE_FORMS if form.family == family)
