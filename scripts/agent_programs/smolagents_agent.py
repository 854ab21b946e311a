"""An agent of smolagents that calls tools; `--code` writes Python in place of tool calls."""

import json
import os
import sys
from pathlib import Path

from smolagents import CodeAgent, OpenAIModel, ToolCallingAgent, tool


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
)
kind = CodeAgent if "--code" in sys.argv else ToolCallingAgent
print(kind(tools=[calculate], model=model, max_steps=100, verbosity_level=0).run(task["prompt"]))
