"""Reads a model's answer: its reasoning, its text and its tool calls.

Every model family writes them in its own form, the one that its chat template renders;
:func:`parser_for` finds the form in the template. Where the tools are listed in the prompt's text
instead (``tool_style = "text"``), :data:`TEXT_CALLS` reads the calls. All parsers keep one promise:
they never raise and never drop a call. A call that cannot be read becomes a
:class:`~vf.traces.messages.ToolCall` with ``malformed`` set, which the environment reports back to
the model. Reasoning that was never closed takes the whole text.
"""

from vf.inference.parsing.families import PARSERS, parser_for, text_parser
from vf.inference.parsing.json_calls import TEXT_CALLS
from vf.inference.parsing.parser import Parser

__all__ = ["PARSERS", "TEXT_CALLS", "Parser", "parser_for", "text_parser"]
