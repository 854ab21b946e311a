"""Seed-OSS's form: Qwen3-Coder's tags for the arguments, and tags of its own around them.

    <seed:think>reasoning</seed:think>text
    <seed:tool_call>
    <function=NAME>
    <parameter=KEY>value</parameter>
    </function>
    </seed:tool_call>

Source: the chat template of Seed-OSS.
"""

from __future__ import annotations

import re
from dataclasses import replace

from vf.inference.parsing.parser import MarkedParser
from vf.inference.parsing.qwen_xml import TAGS

SEED = MarkedParser(
    "seed",
    re.compile(r"<seed:tool_call>(?P<body>.*?)(?P<closed></seed:tool_call>|\Z)", re.DOTALL),
    "</seed:tool_call>",
    replace(TAGS, padded=False).read,
    reasoning=("<seed:think>", "</seed:think>"),
)
