"""Chat templates of different temper, to be put on the shipped tokenizer."""

from __future__ import annotations

from typing import Any

import pytest

from vf.inference.model_files import resolve_model
from vf.inference.rendering.chat_template import ChatTemplate

# Qwen3's way: reasoning is shown only after the last question, tools are answered as the user.
STRIPS_THINKING = """\
{%- set ns = namespace(last=-1) %}
{%- for m in messages %}
    {%- if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}
{%- endfor %}
{%- for m in messages %}
    {%- if m.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' }}
        {%- if m.reasoning_content and loop.index0 > ns.last %}
            {{- '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}
        {%- endif %}
        {{- m.content }}
        {%- for c in m.tool_calls or [] %}
            {{- '\n<tool_call>\n' + (c.function | tojson) + '\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif m.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- else %}
        {{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}
"""

# Llama 3.1's way: headers, another closer, no line break after it, one call per answer.
LLAMA = """\
{{- '<|endoftext|>' }}
{%- for m in messages %}
    {%- set role = 'ipython' if m.role == 'tool' else m.role %}
    {{- '<|start_header_id|>' + role + '<|end_header_id|>\n\n' }}
    {%- if m.tool_calls %}
        {%- if m.tool_calls | length != 1 %}{{- raise_exception('one call at a time') }}{% endif %}
        {{- m.tool_calls[0].function | tojson }}
    {%- else %}
        {{- m.content | trim }}
    {%- endif %}
    {{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""

# A tool message must follow a call or another tool message.
STRICT = """\
{%- for m in messages %}
    {%- if m.role == 'tool' %}
        {%- set before = messages[loop.index0 - 1] %}
        {%- if before.role != 'tool' and not before.tool_calls %}
            {{- raise_exception('a tool message must follow a tool call') }}
        {%- endif %}
    {%- endif %}
    {{- '<|im_start|>' + m.role + '\n' + m.content }}
    {%- for c in m.tool_calls or [] %}{{- '<tool_call>' + (c.function | tojson) }}{% endfor %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}
"""

# ChatML as SmolLM2 has it: tools are not shown, and a tool's result has a role of its own.
HIDES_TOOLS = """\
{%- for m in messages %}
    {{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}
"""

# Each prompt holds only the last message: the answers before it are not shown.
FORGETS = """\
{{- '<|im_start|>' + (messages | length | string) + '\n' }}
{%- if messages[-1].role != 'assistant' %}
    {{- messages[-1].content + '<|im_end|>\n<|im_start|>assistant\n' }}
{%- else %}
    {{- messages[-1].content + '<|im_end|>\n' }}
{%- endif %}
"""

# gpt-oss's way: an answer that calls a tool is closed with a token of its own.
OTHER_CLOSER = """\
{%- for m in messages %}
    {{- '<|im_start|>' + m.role + '\n' + m.content }}
    {%- if m.tool_calls %}
        {{- m.tool_calls[-1].function.arguments | tojson + '<|endoftext|>' }}
    {%- else %}
        {{- '<|im_end|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}
"""

# The prompt opens the reasoning for the model.
OPENS_THINKING = STRIPS_THINKING.replace(
    "{{- '<|im_start|>assistant\n' }}{% endif %}",
    "{{- '<|im_start|>assistant\n<think>\n' }}{% endif %}",
)

NO_CLOSER = (
    "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def tokenizer(template: str | None = None) -> Any:
    """Return a fresh copy of the shipped tokenizer, with another template if one is given."""
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(resolve_model("tiny"))
    if template == LLAMA:
        special = ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
        loaded.add_special_tokens({"additional_special_tokens": special})
    if template is not None:
        loaded.chat_template = template
    return loaded


def watch_encoding(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the lengths of all texts that are tokenized from now on, in characters."""
    encode, encoded = ChatTemplate.encode, list[int]()

    def watched(template: ChatTemplate, text: str) -> list[int]:
        encoded.append(len(text))
        return encode(template, text)

    monkeypatch.setattr(ChatTemplate, "encode", watched)
    return encoded
