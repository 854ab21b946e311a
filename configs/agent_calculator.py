"""The calculator's tasks for an agent of the OpenAI Agents SDK; see `agent-calculator.toml`.

Prompts, tool and rubric are the calculator's, so that what is learned can be compared with it.
"""

from __future__ import annotations

from typing import Any

import openai
from agents import (
    Agent,
    FunctionTool,
    OpenAIChatCompletionsModel,
    RunContextWrapper,
    Runner,
    set_tracing_disabled,
)

import vf
from vf.environments.bundled.calculator import Calculator
from vf.traces.tools import ArgumentError

set_tracing_disabled(True)  # traces would be sent to OpenAI
calculator = Calculator(max_operand=20)
calculate = calculator.toolbox.tools["calculate"]


async def invoke(context: RunContextWrapper[Any], arguments: str) -> str:
    """Run the tool; wrong arguments get the same error as natively."""
    try:
        return str(calculate.fn(**calculate.validate(arguments)))
    except ArgumentError as error:
        return f"Error: {error}"


TOOL = FunctionTool(
    calculate.name, calculate.description, calculate.parameters, invoke, strict_json_schema=False
)


@vf.agent
async def solve(task: vf.Task, endpoint: vf.Endpoint) -> str | None:
    """Work one task out."""
    # Loading the certificates of public servers takes longer than the rollout.
    http = openai.DefaultAsyncHttpxClient(verify=False)
    async with openai.AsyncOpenAI(
        base_url=endpoint.url, api_key=endpoint.key, http_client=http
    ) as client:
        agent = Agent(
            "calculator",
            instructions=Calculator.system_prompt,
            model=OpenAIChatCompletionsModel(endpoint.model, client),
            tools=[TOOL],
        )
        run = await Runner.run(agent, task.prompt, max_turns=100)  # the endpoint counts them
    return str(run.final_output)


environment = vf.AgentEnvironment(
    solve,
    tasks=calculator.tasks,
    rubric=calculator.rubric,
    max_turns=calculator.max_turns,
    processes=1,  # the framework's Python would hold up the trainer's
)
