"""The parser is found in the chat template's own text."""

from __future__ import annotations

from typing import Any

import pytest

from tests.inference.chat_templates import tokenizer
from tests.inference.parsing.forms import RENDERED, TEMPLATES, template
from vf.inference.parsing.families import PARSERS, parser_for
from vf.inference.rendering.renderer import Renderer

# They render no tool calls. If the models are known to make some anyway, the family's parser reads
# them; for the others it does not matter which one is used.
WITHOUT_CALLS = {
    "command-r": ["cohere"],
    "cohere": ["cohere2"],
    "deepseek": ["deepseek_r1_distill"],
    "lfm2": ["lfm2"],
    "hermes": [
        "gemma",
        "gemma3",
        "idefics3",
        "llama3",
        "llava_next",
        "phi3",
        "phi3_5",
        "qwen2_5_vl",
        "smolvlm",
    ],
}
EXPECTED = {form.name: form.family for form in RENDERED} | {
    name: family
    for family, names in WITHOUT_CALLS.items()
    for base in names
    for name in (base, f"{base}_training")
    if (TEMPLATES / f"{name}.jinja").is_file()
}


def test_every_template_of_trl_is_looked_at() -> None:
    assert set(EXPECTED) == {path.stem for path in TEMPLATES.glob("*.jinja")}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_family_of_a_template_is_found(name: str) -> None:
    assert parser_for(template(name)).family == EXPECTED[name]


@pytest.mark.parametrize(
    ("text", "family"),
    [
        ("{{ '<|START_THINKING|>' }}{{ '<|START_ACTION|>[' }}", "cohere"),
        ("<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{{ message.content }}", "command-r"),
        ('{{- "[TOOL_CALLS] [" }}{{ tool_call.function|tojson }}', "mistral"),
        ("{{- '[TOOL_CALLS]' + tool.function.name + '[ARGS]' }}", "mistral"),
        ("<|tool_calls_section_begin|><|tool_call_begin|>{{ tool_call.id }}", "kimi"),
        ("{{ '<|im_assistant|>assistant<|im_middle|>' }}", "kimi"),
        ("'<｜tool▁call▁begin｜>' + tool['function']['name'] + '<｜tool▁sep｜>'", "deepseek"),
        ("{{- '<TOOLCALL>[' -}}", "nemotron-v2"),
        ("'<|tool|>' + (tool | tojson) + '<|/tool|>'", "phi4"),
        ("formatted as functools[{...}]", "phi4"),
        ("{{- '<start_function_call>call:' -}}", "functiongemma"),
        ("<tool_call>\n<function=example_function_name>", "qwen-xml"),
        ("<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key>", "glm"),
        ("<tool_call>{{ call.function | tojson }}</tool_call>", "hermes"),
        ("{%- set toolcall_begin_token = '<minimax:tool_call>' -%}", "minimax"),
        ("{{ '<function_calls>' }}{{ name + '(' + arguments + ')' }}", "olmo3"),
        ("{{ '<seed:tool_call>\\n<function=' + name }}", "seed"),
        ("respond only with <|tool_call|> followed by a JSON list", "granite3"),
        ("{{ message.content }}", "hermes"),
        ("", "hermes"),
    ],
)
def test_the_family_is_found_by_what_the_template_writes(text: str, family: str) -> None:
    assert parser_for(text).family == family


def test_every_parser_is_known_by_its_family() -> None:
    assert all(parser.family == family for family, parser in PARSERS.items())
    assert set(EXPECTED.values()) <= set(PARSERS)


TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "find",
        "parameters": {
            "type": "object",
            "properties": {"zip": {"type": "string"}, "n": {"type": "integer"}},
        },
    },
}
XML_CALL = """<tool_call>
<function=find>
<parameter=zip>
02
</parameter>
<parameter=n>
2
</parameter>
</function>
</tool_call>"""


def test_a_renderer_reads_in_its_templates_form_with_the_schemas_it_is_given() -> None:
    renderer = Renderer(tokenizer(template("qwen3_5_nothink")))
    ids = renderer.tokenizer.encode(XML_CALL, add_special_tokens=False)
    typed = renderer.parse(ids, prompt_ids=[1], turn=0, tools=[TOOL]).tool_calls[0]
    guessed = renderer.parse(ids, prompt_ids=[1], turn=0).tool_calls[0]
    assert (typed.name, typed.arguments) == ("find", '{"zip": "02", "n": 2}')
    assert guessed.arguments == typed.arguments  # 02 is not JSON
    text = XML_CALL.replace("02", "2")
    typed, guessed = (
        renderer.parse_text(text, prompt_ids=[1], turn=0, tools=tools).tool_calls[0]
        for tools in ([TOOL], [])
    )
    assert typed.arguments == '{"zip": "2", "n": 2}'
    assert guessed.arguments == '{"zip": 2, "n": 2}'


def test_a_renderer_notices_reasoning_that_opens_in_the_familys_own_way() -> None:
    renderer = Renderer(tokenizer(template("gemma3") + "{# <|tool_call> #}"))
    assert renderer.parser.family == "gemma4"
    for ending, opened in (("<|channel>thought\n", True), ("<think>", False)):
        prompt = renderer.tokenizer.encode("x" + ending, add_special_tokens=False)
        assert renderer.opens_reasoning(prompt) is opened
