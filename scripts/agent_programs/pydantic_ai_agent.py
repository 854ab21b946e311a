"""An agent of pydantic-ai; `--responses` speaks Responses in place of Chat Completions."""

import json
import os
import sys
from pathlib import Path
from typing import Literal

from pydantic_ai import Agent, UsageLimits

API = "openai-responses" if "--responses" in sys.argv else "openai-chat"

agent = Agent(
    f"{API}:{os.environ['VF_MODEL']}", system_prompt="Work it out with the calculate tool."
)


@agent.tool_plain
def calculate(op: Literal["+", "-", "*"], a: int, b: int) -> int:
    """Apply one operation to two integers.

    Args:
        op: The operation.
        a: Left operand.
        b: Right operand.
    """
    return {"+": a + b, "-": a - b, "*": a * b}[op]


task = json.loads(Path(os.environ["VF_TASK"]).read_text())
print(agent.run_sync(task["prompt"], usage_limits=UsageLimits(request_limit=None)).output)
