"""Calls whose arguments stand between tags, one by one, their values as bare text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from vf.inference.parsing.calls import Unreadable, call_from_values
from vf.inference.parsing.values import Schemas, read_value
from vf.traces.messages import ToolCall


@dataclass(frozen=True, slots=True)
class Tags:
    """The tags of one form.

    Attributes:
        head: What a call begins with; group ``name``.
        key: What an argument begins with, up to its value; group ``key``.
        value_end: What ends a value. It looks ahead to the next argument or the end, so that a
            value may hold the closing tag itself.
        tail: What ends the arguments.
        shape: The form in words, for the reasons.
        padded: Whether a line break before and after the value is not part of it.
    """

    head: re.Pattern[str]
    key: re.Pattern[str]
    value_end: re.Pattern[str]
    tail: re.Pattern[str]
    shape: str
    padded: bool = False

    def read(self, body: str, schemas: Schemas) -> list[ToolCall]:
        """Read one call.

        Raises:
            Unreadable: The tags are not as they should be.
        """
        head = self.head.match(body)
        if head is None:
            raise Unreadable(f"it does not begin like {self.shape}")
        name, at = head["name"].strip(), head.end()
        schema = schemas.get(name, {})
        arguments: dict[str, Any] = {}
        while key := self.key.match(body, at):
            end = self.value_end.search(body, key.end())
            if end is None:
                raise Unreadable(f"its argument {key['key']!r} is not closed; write {self.shape}")
            parameter, value = key["key"].strip(), body[key.end() : end.start()]
            if parameter in arguments:
                raise Unreadable(f"its argument {parameter!r} is given twice")
            if self.padded:
                value = value.removeprefix("\n").removesuffix("\n")
            arguments[parameter] = read_value(value, parameter, schema)
            at = end.end()
        if self.tail.fullmatch(body, at) is None:
            raise Unreadable(f"{body[at : at + 40]!r} is not an argument; write {self.shape}")
        return [call_from_values(name, arguments)]
