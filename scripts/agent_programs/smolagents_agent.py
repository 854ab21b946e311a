"""An agent of smolagents that calls tools; `--code` writes Python in place of tool calls.

By default smolagents adds its own account of the calls to the answers that it sends back. With
`--append` the account becomes a message of the user's, and the answers stay as they were.
"""

import json
import os
import sys
from pathlib import Path

from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool

APPEND = {"tool-call": "user", "tool-response": "user"}


@tool
def calculate(op: str, a: int, b: int) -> int:
    """Apply one operation to two integers.

    Args:
        op: The operation: +, - or *.
        a: Left operand.
        b: Right operand.
    """
    return {"+": a + b, "-": a - b, "*": a * b}[op]


task = json.loads(Path(os.environ["VF_TASK"]).read_text())
model = OpenAIModel(
    os.environ["VF_MODEL"],
    api_base=os.environ["OPENAI_BASE_URL"],
    api_key=os.environ["OPENAI_API_KEY"],
    custom_role_conversions=APPEND if "--append" in sys.argv else None,
)
kind = CodeAgent if "--code" in sys.argv else ToolCallingAgent
print(kind(tools=[calculate], model=model, max_steps=100, verbosity_level=0).run(task["prompt"]))
