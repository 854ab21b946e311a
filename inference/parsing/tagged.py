"""Forms that write each argument between tags, its value as bare text.

    <tool_call>NAME                                          GLM-4.5 and later
    <arg_key>key</arg_key>
    <arg_value>value</arg_value>
    </tool_call>

    <tool_call>                                              Qwen3-Coder, Qwen3.5 and later,
    <function=NAME>                                          Nemotron 3
    <parameter=KEY>
    value
    </parameter>
    </function>
    </tool_call>

    <seed:think>reasoning</seed:think>text                   Seed-OSS
    <seed:tool_call>
    <function=NAME>
    <parameter=KEY>value</parameter>
    </function>
    </seed:tool_call>

    <minimax:tool_call>                                      MiniMax-M2
    <invoke name="NAME">
    <parameter name="KEY">value</parameter>
    </invoke>
    </minimax:tool_call>

Text stands as it is, anything else as JSON. Later GLM models leave out the line breaks. Qwen3.5 and
Nemotron 3 write Python's True, False and None; the Qwen models are known to leave out the first
``<tool_call>``. MiniMax puts all calls between one pair of outer tags.

Sources: the chat templates of these models.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from vf.inference.parsing.build_calls import Unreadable, call_from_values
from vf.inference.parsing.parser import MarkedParser
from vf.inference.parsing.values import Schemas, read_value
from vf.traces.messages import ToolCall


@dataclass(frozen=True, slots=True)
class Tags:
    """The tags of one form, as patterns.

    Attributes:
        head: What begins a call; group ``name``.
        key: What begins an argument, up to its value; group ``key``.
        value_end: What ends a value. It looks ahead to the next argument or the end, so that a
            value may hold the closing tag itself.
        shape: The form in words, for error messages.
        tail: What ends the arguments.
        padded: Whether a line break before and after the value is not part of it.
    """

    head: str
    key: str
    value_end: str
    shape: str
    tail: str = ""
    padded: bool = False

    def read(self, body: str, schemas: Schemas) -> list[ToolCall]:
        """Read one call.

        Raises:
            Unreadable: If a tag is missing, unknown or repeated.
        """
        head = re.match(self.head, body)
        if head is None:
            raise Unreadable(f"it does not begin like {self.shape}")
        name, at = head["name"].strip(), head.end()
        schema = schemas(name)
        key_pattern, end_pattern = re.compile(self.key), re.compile(self.value_end)
        arguments: dict[str, Any] = {}
        while key := key_pattern.match(body, at):
            end = end_pattern.search(body, key.end())
            if end is None:
                raise Unreadable(f"its argument {key['key']!r} is not closed; write {self.shape}")
            parameter, value = key["key"].strip(), body[key.end() : end.start()]
            if parameter in arguments:
                raise Unreadable(f"its argument {parameter!r} is given twice")
            if self.padded:
                value = value.removeprefix("\n").removesuffix("\n")
            arguments[parameter] = read_value(value, parameter, schema)
            at = end.end()
        if re.compile(self.tail).fullmatch(body, at) is None:
            raise Unreadable(f"{body[at : at + 40]!r} is not an argument; write {self.shape}")
        return [call_from_values(name, arguments)]


def invoke_tags(prefix: str = "") -> Tags:
    """Return the tags ``<invoke name="NAME">`` and ``<parameter name="KEY">`` with a prefix."""
    invoke, parameter = f"<{prefix}invoke name=", f"<{prefix}parameter name="
    end = f"</{prefix}parameter>"
    return Tags(
        head=rf'{invoke}"(?P<name>[^"\n]+)">\s*',
        key=rf'{parameter}"(?P<key>[^"\n]+)">',
        value_end=rf"{end}\s*(?={parameter}|\Z)",
        shape=f'{invoke}"NAME">{parameter}"KEY">value{end}',
    )


_GLM = Tags(
    head=r"\s*(?P<name>[^\s<>]+)\s*",
    key=r"<arg_key>(?P<key>.*?)</arg_key>\s*<arg_value>",
    value_end=r"</arg_value>\s*(?=<arg_key>|\Z)",
    shape="NAME<arg_key>key</arg_key><arg_value>value</arg_value>",
)

_QWEN = Tags(
    head=r"\s*<function=(?P<name>[^<>\n]+)>\s*",
    key=r"<parameter=(?P<key>[^>\n]+)>",
    value_end=r"</parameter>\s*(?=<parameter=|</function>)",
    shape="<function=NAME><parameter=KEY>value</parameter></function>",
    tail=r"</function>\s*",
    padded=True,
)

GLM = MarkedParser("glm", "<tool_call>", "</tool_call>", _GLM.read)

QWEN_XML = MarkedParser("qwen-xml", "<tool_call>|(?=<function=)", "</tool_call>", _QWEN.read)

SEED = MarkedParser(
    "seed",
    "<seed:tool_call>",
    "</seed:tool_call>",
    replace(_QWEN, padded=False).read,
    reasoning=("<seed:think>", "</seed:think>"),
)

MINIMAX = MarkedParser(
    "minimax",
    r"(?=<invoke\b)",
    "</invoke>",
    invoke_tags().read,
    dressing="</?minimax:tool_call>",
)
