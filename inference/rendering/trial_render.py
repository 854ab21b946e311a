"""Render an unknown chat template once, in a process that exists for that alone.

``python -m vf.inference.rendering.trial_render SECONDS`` reads a template from its input, and
renders a few typical conversations within limits of memory and processor time. What the template
refuses is not counted: whoever uses it learns of that.
"""

from __future__ import annotations

import json
import resource
import sys
from contextlib import suppress
from typing import Any

MEMORY = 2**30  # bytes of address space
SECONDS = 5  # of processor time
TOO_MUCH_MEMORY = 3  # exit code

_CALL = {"id": "call00000", "type": "function", "function": {"name": "look", "arguments": {"a": 1}}}
_TOOL = {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}}
_QUESTION = {"role": "user", "content": "How is the weather?"}
_CONVERSATIONS: list[list[dict[str, Any]]] = [
    [_QUESTION],
    [{"role": "system", "content": "Be brief."}, _QUESTION],
    [_QUESTION, {"role": "assistant", "content": "It rains."}, _QUESTION],
    [
        _QUESTION,
        {"role": "assistant", "content": "", "tool_calls": [_CALL]},
        {"role": "tool", "content": "rain", "name": "look", "tool_call_id": "call00000"},
    ],
]


def render_all(template: str) -> None:
    """Render every conversation, with and without tools, as Transformers would."""
    from jinja2 import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = lambda value, **_: json.dumps(value)
    environment.globals |= {"raise_exception": refuse, "strftime_now": lambda form: form}
    compiled = environment.from_string(template)
    for messages in _CONVERSATIONS:
        for tools in (None, [{"type": "function", "function": _TOOL}]):
            for opens in (True, False):
                with suppress(TemplateError, TypeError, ValueError, LookupError, AttributeError):
                    compiled.render(messages=messages, tools=tools, add_generation_prompt=opens)


def main() -> int:
    """Render what comes in; return the exit code."""
    template = sys.stdin.read()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    seconds = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        render_all(template)
    except MemoryError:
        return TOO_MUCH_MEMORY
    except Exception:  # an extension of the syntax, say: what renders it knows
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
