"""MiniMax-M2's form: a tag for each call, and one for each argument.

    <think>reasoning</think>text
    <minimax:tool_call>
    <invoke name="NAME">
    <parameter name="KEY">value</parameter>
    </invoke>
    </minimax:tool_call>

A text stands as it is, anything else as JSON. One pair of the outer tags holds all calls.

Source: the chat template of MiniMax-M2.
"""

from __future__ import annotations

import re

from vf.inference.parsing.parser import MarkedParser
from vf.inference.parsing.tagged import Tags

_TAGS = Tags(
    head=re.compile(r'<invoke name="(?P<name>[^"\n]+)">\s*'),
    key=re.compile(r'<parameter name="(?P<key>[^"\n]+)">'),
    value_end=re.compile(r"</parameter>\s*(?=<parameter name=|\Z)"),
    tail=re.compile(""),
    shape='<invoke name="NAME"><parameter name="KEY">value</parameter>',
)

MINIMAX = MarkedParser(
    "minimax",
    re.compile(r"(?P<body><invoke\b.*?)(?P<closed></invoke>|\Z)", re.DOTALL),
    "</invoke>",
    _TAGS.read,
    dressing=re.compile(r"</?minimax:tool_call>"),
)
