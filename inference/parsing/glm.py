"""GLM-4's form since GLM-4.5: the keys and the values each in tags of their own.

    <think>reasoning</think>text
    <tool_call>NAME
    <arg_key>key</arg_key>
    <arg_value>value</arg_value>
    </tool_call>

A text stands as it is, anything else as JSON. Later models leave out the line breaks.

Source: the chat templates of GLM-4.5 and GLM-4.6.
"""

from __future__ import annotations

import re

from vf.inference.parsing.parser import MarkedParser
from vf.inference.parsing.tagged import Tags

_TAGS = Tags(
    head=re.compile(r"\s*(?P<name>[^\s<>]+)\s*"),
    key=re.compile(r"<arg_key>(?P<key>.*?)</arg_key>\s*<arg_value>"),
    value_end=re.compile(r"</arg_value>\s*(?=<arg_key>|\Z)"),
    tail=re.compile(""),
    shape="NAME<arg_key>key</arg_key><arg_value>value</arg_value>",
)

GLM = MarkedParser(
    "glm",
    re.compile(r"<tool_call>(?P<body>.*?)(?P<closed></tool_call>|\Z)", re.DOTALL),
    "</tool_call>",
    _TAGS.read,
)
