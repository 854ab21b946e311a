"""The form of Qwen3-Coder, Qwen3.5 and later, and Nemotron 3: a tag for each argument.

    <think>reasoning</think>text
    <tool_call>
    <function=NAME>
    <parameter=KEY>
    value
    </parameter>
    </function>
    </tool_call>

A text stands as it is, anything else as JSON; Qwen3.5 and Nemotron 3 write Python's True, False and
None. The models are known to leave out the first ``<tool_call>``.

Source: the chat templates of Qwen3-Coder, Qwen3.5, Qwen3.6 and Nemotron 3.
"""

from __future__ import annotations

import re

from vf.inference.parsing.parser import MarkedParser
from vf.inference.parsing.tagged import Tags

TAGS = Tags(
    head=re.compile(r"\s*<function=(?P<name>[^<>\n]+)>\s*"),
    key=re.compile(r"<parameter=(?P<key>[^>\n]+)>"),
    value_end=re.compile(r"</parameter>\s*(?=<parameter=|</function>)"),
    tail=re.compile(r"</function>\s*"),
    shape="<function=NAME><parameter=KEY>value</parameter></function>",
    padded=True,
)

QWEN_XML = MarkedParser(
    "qwen-xml",
    re.compile(
        r"(?:<tool_call>|(?=<function=))(?P<body>.*?)(?P<closed></tool_call>|\Z)", re.DOTALL
    ),
    "</tool_call>",
    TAGS.read,
)
