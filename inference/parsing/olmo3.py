"""OLMo 3's form: a Python call on each line, whose values are JSON.

    <think>reasoning</think>text<function_calls>NAME(key="text", n=5)
    NAME(list=["a", true])</function_calls>

Source: the chat template of OLMo 3.
"""

from __future__ import annotations

import re

from vf.inference.parsing.lfm2 import read_calls
from vf.inference.parsing.parser import MarkedParser
from vf.inference.parsing.values import Schemas
from vf.traces.messages import ToolCall


def _read(body: str, schemas: Schemas) -> list[ToolCall]:
    return [call for line in body.split("\n") for call in read_calls(line)]


OLMO3 = MarkedParser(
    "olmo3",
    re.compile(r"<function_calls>(?P<body>.*?)(?P<closed></function_calls>|\Z)", re.DOTALL),
    "</function_calls>",
    _read,
)
