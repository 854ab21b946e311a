"""DeepSeek's forms: JSON between markers, in a code block (V3, R1) or bare (V3.1).

    <think>reasoning</think>text<｜tool▁calls▁begin｜>
    <｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME
    ```json
    {...}
    ```<｜tool▁call▁end｜>                                        (V3, R1)
    <｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>  (V3.1)
    <｜tool▁calls▁end｜>

Source: the chat templates of DeepSeek-V3, DeepSeek-R1 and DeepSeek-V3.1.
"""

from __future__ import annotations

import re

from vf.inference.parsing.calls import Unreadable, call_from_text
from vf.inference.parsing.parser import MarkedParser
from vf.inference.parsing.values import Schemas
from vf.traces.messages import ToolCall

_SEPARATOR = "<｜tool▁sep｜>"
_FENCED = re.compile(r"\s*(?P<name>[^\s`{]+)\s*```(?:json)?(?P<arguments>.*)```\s*", re.DOTALL)


def _read(body: str, schemas: Schemas) -> list[ToolCall]:
    before, found, after = body.partition(_SEPARATOR)
    if not found:
        raise Unreadable(f"it has no {_SEPARATOR}")
    if fenced := _FENCED.fullmatch(after):
        return [call_from_text(fenced["name"], fenced["arguments"])]
    return [call_from_text(before.strip(), after)]


DEEPSEEK = MarkedParser(
    "deepseek",
    # A list that begins without a call is one call that cannot be read.
    re.compile(
        r"(?:<｜tool▁call▁begin｜>|<｜tool▁calls▁begin｜>(?!\s*<｜tool▁call▁begin｜>))"
        r"(?P<body>.*?)(?P<closed><｜tool▁call▁end｜>|\Z)",
        re.DOTALL,
    ),
    "<｜tool▁call▁end｜>",
    _read,
    dressing=re.compile(r"<｜tool▁calls▁(?:begin|end)｜>"),
)
