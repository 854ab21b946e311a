"""The Hermes/Qwen form: JSON between tags.

    <think>reasoning</think>text<tool_call>{"name": "...", "arguments": {...}}</tool_call>

Source: the chat templates of Qwen2.5, Qwen3 and the Hermes models.
"""

from __future__ import annotations

import re

from vf.inference.parsing.calls import call_from_object, decode
from vf.inference.parsing.parser import MarkedParser
from vf.inference.parsing.values import Schemas
from vf.traces.messages import Message, ToolCall


def _read(body: str, schemas: Schemas) -> list[ToolCall]:
    return [call_from_object(decode(body))]


HERMES = MarkedParser(
    "hermes",
    re.compile(r"<tool_call>(?P<body>.*?)(?P<closed></tool_call>|\Z)", re.DOTALL),
    "</tool_call>",
    _read,
)


def parse_hermes(text: str, *, id_prefix: str, in_reasoning: bool = False) -> Message:
    """Parse one answer in the Hermes form; see :meth:`vf.inference.parsing.Parser.parse`.

    Args:
        text: What the model wrote, without its stop token.
        id_prefix: Tool calls get the ids ``{id_prefix}_0``, ``{id_prefix}_1``, ...
        in_reasoning: Whether the prompt had already opened ``<think>``.

    Returns:
        An assistant message. Reasoning that was never closed takes the whole text.
    """
    return HERMES.parse(text, id_prefix=id_prefix, in_reasoning=in_reasoning)
