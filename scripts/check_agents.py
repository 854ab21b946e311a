"""Check that agents from PyPI and npm are recorded token by token, as they are.

Each agent is installed once, pinned, in a folder of its own, and runs as the program of an
environment; the small programs that some need are in `agent_programs/`. A scripted token engine
answers (`scripted_engine.py`). Then every token of the traces is compared with the engine's log.

Prints a row for each agent. Exit code: 1 if a token differs, a conversation has more than one
branch, a rollout failed, or an agent that grows its history began another conversation.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scripted_engine import Comparison, ScriptedEngine, compare

from vf.environments.agents.program import program
from vf.environments.runner import rollout
from vf.inference.model import Sampling
from vf.inference.model_files import resolve_model
from vf.inference.models.token_model import TokenModel
from vf.inference.rendering.renderer import Renderer
from vf.rubrics.rubric import Rubric
from vf.traces.task import Task
from vf.traces.trace import Trace

PLACE = Path("~/.cache/vf-rl/agents")
PROGRAMS = Path(__file__).with_name("agent_programs")
SECONDS = 600.0  # for one rollout
LONGEST = 4096  # sampled tokens in one answer

CODEX_PROVIDER = (
    "model_providers.vf={name='vf', base_url='{url}', env_key='OPENAI_API_KEY', "
    "wire_api='responses'}"
)
OPENCODE_CONFIG = """{
  "provider": {"vf": {
    "npm": "@ai-sdk/openai-compatible",
    "options": {"baseURL": "{env:OPENAI_BASE_URL}", "apiKey": "{env:OPENAI_API_KEY}"},
    "models": {"policy": {}}
  }},
  "permission": "allow",
  "share": "disabled"
}"""
# Nothing here changes what an agent asks its model.
QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DO_NOT_TRACK": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "MSWEA_CONFIGURED": "true",
    "MSWEA_COST_TRACKING": "ignore_errors",
    "MSWEA_SILENT_STARTUP": "1",
    "OPENCODE_CONFIG_CONTENT": OPENCODE_CONFIG,
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "PYTHONDONTWRITEBYTECODE": "",
}


@dataclass(frozen=True)
class Installation:
    """What is installed together.

    Attributes:
        folder: Where, in :data:`PLACE`.
        packages: With their versions; npm's have the form ``NAME@VERSION``.
    """

    folder: str
    packages: tuple[str, ...]

    @property
    def from_npm(self) -> bool:
        """Whether npm installs it."""
        return "==" not in self.packages[0]

    @property
    def programs(self) -> Path:
        """Where its programs are."""
        return self.place / ("node_modules/.bin" if self.from_npm else "bin")

    @property
    def place(self) -> Path:
        """Its folder."""
        return PLACE.expanduser() / self.folder

    def install(self) -> None:
        """Install it, unless that has been done."""
        ready = self.place / "ready"
        wanted = " ".join(self.packages)
        if ready.is_file() and ready.read_text() == wanted:
            return
        print(f"installing {wanted}", file=sys.stderr, flush=True)
        if self.from_npm:
            self.place.mkdir(parents=True, exist_ok=True)
            npm = ["npm", "install", "--silent", "--no-fund", "--no-audit", "--prefix"]
            subprocess.run([*npm, str(self.place), *self.packages], check=True)
        else:
            venv.create(self.place, with_pip=True, clear=True)
            pip = [str(self.programs / "python"), "-m", "pip", "install", "--quiet"]
            subprocess.run([*pip, *self.packages], check=True)
        ready.write_text(wanted)


OPENAI = Installation("openai", ("openai==3.54.0",))
ANTHROPIC = Installation("anthropic", ("anthropic==2.12.0",))
OPENAI_AGENTS = Installation("openai-agents", ("openai-agents==0.24.0", "openai==3.54.0"))
PYDANTIC_AI = Installation("pydantic-ai", ("pydantic-ai-slim[openai]==2.68.0", "openai==3.54.0"))
SMOLAGENTS = Installation("smolagents", ("smolagents[openai]==1.26.0", "openai==3.54.0"))
# litellm imports mcp without requiring it.
MINI = Installation("mini-swe-agent", ("mini-swe-agent==2.4.6", "litellm==1.106.2", "mcp==2.3.0"))
CODEX = Installation("codex", ("@openai/codex@0.169.0",))
CLAUDE_CODE = Installation("claude-code", ("@anthropic-ai/claude-code@2.1.197",))
OPENCODE = Installation("opencode", ("opencode-ai@1.18.33",))


@dataclass(frozen=True)
class Agent:
    """One agent, and one API that it speaks.

    Attributes:
        installed: What it comes from.
        command: Of the installation's programs, or a file in :data:`PROGRAMS` and its arguments.
        conversations: How many each rollout has, sub-agents included; None if the agent rewrites
            its history with every answer, so that each is a conversation of its own.
    """

    installed: Installation
    command: Sequence[str]
    conversations: int | None = 1

    def argv(self) -> list[str]:
        """Return the whole command."""
        first, *rest = self.command
        if first.endswith(".py"):
            return [str(self.installed.programs / "python"), str(PROGRAMS / first), *rest]
        return [str(self.installed.programs / first), *rest]


MINI_COMMAND = (
    *("mini", "--yolo", "--exit-immediately", "--cost-limit", "0", "--model", "openai/{model}"),
    *("--output", "trajectory.json", "--task", "{prompt}"),
)
CODEX_COMMAND = (
    *("codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
    *("--config", CODEX_PROVIDER, "--config", "model_provider=vf", "--model", "{model}"),
    # The search is one of OpenAI's servers, and is not there for another model.
    *("--config", "web_search='disabled'", "{prompt}"),
)
AGENTS: Mapping[str, Agent] = {
    "openai": Agent(OPENAI, ["openai_loop.py"]),
    "anthropic": Agent(ANTHROPIC, ["anthropic_loop.py"]),
    "openai-agents, Responses": Agent(OPENAI_AGENTS, ["openai_agents_sdk.py"]),
    "openai-agents, Responses, streamed": Agent(
        OPENAI_AGENTS, ["openai_agents_sdk.py", "--stream"]
    ),
    "openai-agents, Chat": Agent(OPENAI_AGENTS, ["openai_agents_sdk.py", "--chat"]),
    "openai-agents, Chat, streamed": Agent(
        OPENAI_AGENTS, ["openai_agents_sdk.py", "--chat", "--stream"]
    ),
    "pydantic-ai, Chat": Agent(PYDANTIC_AI, ["pydantic_ai_agent.py"]),
    "pydantic-ai, Responses": Agent(PYDANTIC_AI, ["pydantic_ai_agent.py", "--responses"]),
    "mini-swe-agent": Agent(MINI, MINI_COMMAND),
    "smolagents, tool calls": Agent(SMOLAGENTS, ["smolagents_agent.py"], None),
    "smolagents, code": Agent(SMOLAGENTS, ["smolagents_agent.py", "--code"], None),
    "smolagents, code, roles set": Agent(SMOLAGENTS, ["smolagents_agent.py", "--code", "--append"]),
    "Codex": Agent(CODEX, CODEX_COMMAND),
    "Claude Code": Agent(
        CLAUDE_CODE,
        ["claude", "--print", "{prompt}", "--model", "{model}", "--allowedTools", "Bash"],
    ),
    # It asks for a title first, beside the task's own conversation.
    "OpenCode": Agent(OPENCODE, ["opencode", "run", "--model", "vf/{model}", "{prompt}"], 2),
}


def solved(trace: Trace) -> float:
    """1 if the program printed the script's answer."""
    return float("Answer: 7" in trace.info["output"])


@dataclass
class Row:
    """What became of one agent."""

    name: str
    found: Comparison
    rollouts: int
    seconds: float
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        found = self.found
        forks = ", ".join(f"{count} {kind}" for kind, count in sorted(found.forks.items()))
        verdict = "yes" if not found.problems else "NO"
        return (
            f"| {self.name} | {found.calls} | {found.tokens:,} | {verdict} | {found.lineages} | "
            f"{found.branches} | {forks or 'none'} | {self.seconds:.0f} |"
        )


HEADER = (
    "| agent | calls | sampled tokens | all as the engine has them | conversations | branches | "
    "forks | seconds |\n|---|---|---|---|---|---|---|---|"
)


async def check(name: str, renderer: Renderer, rollouts: int, answers: int, at_once: int) -> Row:
    """Run one agent, and compare its traces with the engine's log."""
    agent, started = AGENTS[name], time.monotonic()
    agent.installed.install()
    engine = ScriptedEngine(renderer, answers)
    model = TokenModel(engine, renderer, max_seq_len=1_000_000)
    tasks = [Task(f"{n}", f"Compute ({n} + 3) * 2 with a tool.") for n in range(rollouts)]
    environment = program(
        agent.argv(),
        tasks,
        Rubric(outcome=solved),
        env=QUIET,
        timeout=SECONDS,
        max_turns=4 * answers,
    )
    gate = asyncio.Semaphore(at_once)

    async def run(task: Task) -> Trace:
        async with gate:
            return await rollout(environment, task, model, sampling=Sampling(max_tokens=LONGEST))

    traces = await asyncio.gather(*map(run, tasks))
    found = compare(traces, engine.log)
    row = Row(name, found, rollouts, time.monotonic() - started, list(found.problems))
    for trace in traces:
        if trace.error is not None:
            row.problems.append(f"task {trace.task.id}: {trace.error}")
        elif trace.reward != 1.0:
            row.problems.append(f"task {trace.task.id} was not solved: {trace.info['program']}")
        conversations = len(trace.lineages) or 1
        if conversations != len(trace.branches):
            row.problems.append(
                f"task {trace.task.id}: {conversations} conversations have "
                f"{len(trace.branches)} branches"
            )
        if agent.conversations not in (None, conversations):
            reasons = [fork.reason for fork in trace.forks]
            row.problems.append(f"task {trace.task.id}: {conversations} conversations: {reasons}")
    if found.calls < rollouts * answers:
        row.problems.append(f"only {found.calls} calls")
    return row


async def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("agents", nargs="*", help=f"of {'; '.join(AGENTS)}; by default all")
    parser.add_argument("--rollouts", type=int, default=10, help="of each agent")
    parser.add_argument("--answers", type=int, default=20, help="in each conversation")
    parser.add_argument("--at-once", type=int, default=os.cpu_count() or 1, help="rollouts")
    args = parser.parse_args()
    if unknown := sorted(set(args.agents) - set(AGENTS)):
        parser.error(f"no such agent: {', '.join(unknown)}; there are: {'; '.join(AGENTS)}")
    renderer = Renderer.from_pretrained(resolve_model("tiny"))
    print(HEADER, flush=True)
    failed = 0
    for name in args.agents or AGENTS:
        row = await check(name, renderer, args.rollouts, args.answers, args.at_once)
        print(row, flush=True)
        for problem in row.problems[:10]:
            print(problem, file=sys.stderr, flush=True)
        failed += bool(row.problems)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
