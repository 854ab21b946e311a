"""An agent on the `anthropic` client: a loop with one tool, thinking and streaming."""

import json
import os
from pathlib import Path

from anthropic import Anthropic

CALCULATE = {
    "name": "calculate",
    "description": "Apply one operation to two integers.",
    "input_schema": {
        "type": "object",
        "properties": {
            "op": {"type": "string", "enum": ["+", "-", "*"], "description": "The operation."},
            "a": {"type": "integer", "description": "Left operand."},
            "b": {"type": "integer", "description": "Right operand."},
        },
        "required": ["op", "a", "b"],
    },
}


def calculate(op: str, a: int, b: int) -> str:
    """Apply one operation."""
    return str({"+": a + b, "-": a - b, "*": a * b}[op])


def main() -> None:
    """Work one task out, and print the answer."""
    task = json.loads(Path(os.environ["VF_TASK"]).read_text())
    client = Anthropic()
    messages = [{"role": "user", "content": task["prompt"]}]
    asked = {
        "model": os.environ["VF_MODEL"],
        "max_tokens": 1024,
        "system": [{"type": "text", "text": "Work it out with the calculate tool."}],
        "tools": [CALCULATE],
        "messages": messages,
    }
    while True:
        with client.messages.stream(**asked) as stream:
            message = stream.get_final_message()
        messages.append({"role": "assistant", "content": message.content})
        calls = [block for block in message.content if block.type == "tool_use"]
        if not calls:
            print("".join(block.text for block in message.content if block.type == "text"))
            return
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": calculate(**call.input)}
            for call in calls
        ]
        messages.append({"role": "user", "content": results})


main()
