"""An agent without a framework: a loop on the `openai` client, with one tool."""

import json
import os
from pathlib import Path

from openai import OpenAI

CALCULATE = {
    "type": "function",
    "function": {
        "name": "calculate",
        "description": "Apply one operation to two integers.",
        "parameters": {
            "type": "object",
            "properties": {
                "op": {"type": "string", "enum": ["+", "-", "*"], "description": "The operation."},
                "a": {"type": "integer", "description": "Left operand."},
                "b": {"type": "integer", "description": "Right operand."},
            },
            "required": ["op", "a", "b"],
        },
    },
}


def calculate(op: str, a: int, b: int) -> str:
    """Apply one operation."""
    return str({"+": a + b, "-": a - b, "*": a * b}[op])


def main() -> None:
    """Work one task out, and print the answer."""
    task = json.loads(Path(os.environ["VF_TASK"]).read_text())
    client = OpenAI()
    messages = [
        {"role": "system", "content": "Work it out with the calculate tool."},
        {"role": "user", "content": task["prompt"]},
    ]
    while True:
        answer = client.chat.completions.create(
            model=os.environ["VF_MODEL"], messages=messages, tools=[CALCULATE], temperature=0.5
        )
        message = answer.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            print(message.content)
            return
        for call in message.tool_calls:
            result = calculate(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


main()
