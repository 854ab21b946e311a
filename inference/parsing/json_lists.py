"""Forms that mark one JSON list of calls: Cohere, Granite 3, Nemotron before version 3, Phi-4.

    <|START_THINKING|>reasoning<|END_THINKING|>
    <|START_ACTION|>[{"tool_name": "...", "parameters": {...}}]<|END_ACTION|>   Command R7B, A
    Action: ```json
    [{"tool_name": "...", "parameters": {...}}]
    ```                                                                         Command R, R+
    <TOOLCALL>[{"name": "...", "arguments": {...}}]</TOOLCALL>                  Nemotron Nano v2
    <|tool_call|>[{"name": "...", "arguments": {...}}]<|/tool_call|>            Phi-4-mini
    functools[{"name": "...", "arguments": {...}}]                              Phi-4-mini
    <|tool_call|>[{"name": "...", "arguments": {...}}]                          Granite 3

Cohere's answers to the user stand between markers too, which are not part of the text. Phi-4-mini
uses either of its forms, and closes the second with its stop token. Granite 3 closes nothing
either, and its answer stands between tags of its own where it reasons.

Sources: the chat templates and model cards of these models.
"""

from __future__ import annotations

import re

from vf.inference.parsing.calls import calls_from_json
from vf.inference.parsing.parser import MarkedParser
from vf.inference.parsing.values import Schemas
from vf.traces.messages import ToolCall


def _read(body: str, schemas: Schemas) -> list[ToolCall]:
    return calls_from_json(body)


def _read_cohere(body: str, schemas: Schemas) -> list[ToolCall]:
    return calls_from_json(body, name="tool_name", arguments="parameters")


COHERE = MarkedParser(
    "cohere",
    re.compile(r"<\|START_ACTION\|>(?P<body>.*?)(?P<closed><\|END_ACTION\|>|\Z)", re.DOTALL),
    "<|END_ACTION|>",
    _read_cohere,
    reasoning=("<|START_THINKING|>", "<|END_THINKING|>"),
    dressing=re.compile(r"<\|(?:START|END)_(?:RESPONSE|TEXT)\|>"),
)

COMMAND_R = MarkedParser(
    "command-r",
    re.compile(r"Action:\s*```(?:json)?(?P<body>.*?)(?P<closed>```|\Z)", re.DOTALL),
    "```",
    _read_cohere,
    marks="<A",
)

NEMOTRON_V2 = MarkedParser(
    "nemotron-v2",
    re.compile(r"<TOOLCALL>(?P<body>.*?)(?P<closed></TOOLCALL>|\Z)", re.DOTALL),
    "</TOOLCALL>",
    _read,
)

PHI4 = MarkedParser(
    "phi4",
    re.compile(
        r"(?:<\|tool_call\|>|functools(?=\[))(?P<body>.*?)(?P<closed><\|/tool_call\|>|\Z)",
        re.DOTALL,
    ),
    None,
    _read,
    marks="<f",
)

GRANITE3 = MarkedParser(
    "granite3",
    re.compile(r"<\|tool_call\|>(?P<body>.*?)(?P<closed>(?=<\|tool_call\|>)|\Z)", re.DOTALL),
    None,
    _read,
    dressing=re.compile(r"</?response>"),
)
