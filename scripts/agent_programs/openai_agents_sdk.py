"""An agent of the OpenAI Agents SDK; `--chat` speaks Chat Completions in place of Responses."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Literal

from agents import Agent, Runner, function_tool, set_default_openai_api, set_tracing_disabled


@function_tool
def calculate(op: Literal["+", "-", "*"], a: int, b: int) -> int:
    """Apply one operation to two integers.

    Args:
        op: The operation.
        a: Left operand.
        b: Right operand.
    """
    return {"+": a + b, "-": a - b, "*": a * b}[op]


async def main(prompt: str) -> None:
    """Work one task out, and print the answer."""
    set_tracing_disabled(True)  # traces go to OpenAI's servers
    if "--chat" in sys.argv:
        set_default_openai_api("chat_completions")
    agent = Agent(
        "calculator",
        instructions="Work it out with the calculate tool.",
        model=os.environ["VF_MODEL"],
        tools=[calculate],
    )
    if "--stream" in sys.argv:
        run = Runner.run_streamed(agent, prompt, max_turns=100)
        async for _ in run.stream_events():
            pass
    else:
        run = await Runner.run(agent, prompt, max_turns=100)
    print(run.final_output)


asyncio.run(main(json.loads(Path(os.environ["VF_TASK"]).read_text())["prompt"]))
