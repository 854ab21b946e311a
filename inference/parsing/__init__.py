"""Reads a model's answer: its reasoning, its text and its tool calls.

Every model family writes them in its own form, the one that its chat template renders;
:func:`~vf.inference.parsing.families.parser_for` finds the form in the template. Where the tools
are listed in the prompt's text instead (``tool_style = "text"``),
:data:`~vf.inference.parsing.json_calls.TEXT_CALLS` reads the calls. All parsers keep one promise:
they never raise and never drop a call. A call that cannot be read becomes a
:class:`~vf.traces.messages.ToolCall` with ``malformed`` set, which the environment reports back to
the model. Reasoning that was never closed takes the whole text.
"""
