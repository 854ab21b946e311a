"""A sub-agent as a tool: a nested conversation, which the same model has with tools of its own."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from vf.environments.environment import Environment
from vf.environments.multi_agent import MultiAgentEnvironment
from vf.environments.nested import NestedEpisodes
from vf.runtime.errors import ConfigError, ToolError
from vf.tools.episode import Service, ToolSet
from vf.traces.messages import writable
from vf.traces.task import Task
from vf.traces.tools import Tool
from vf.traces.trace import StopReason

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SILENCE = "(It ended without a word.)"
_LIMITS = {
    StopReason.MAX_TURNS: "it needed more than its {max_turns} answers",
    StopReason.MAX_TOKENS: "it had no tokens left",
    StopReason.MAX_SEQ_LEN: "its context is full",
    StopReason.MAX_SECONDS: "it ran out of time",
    StopReason.MAX_COST: "the budget is spent",
}


class SubAgent:
    """A tool that begins a nested conversation, and whose result is the last answer in it.

    The model that calls it also plays it. It sees its own system prompt, what it was asked, and its
    own tools; it ends with an answer that calls none. What it samples is recorded in a branch of
    its own, and is trained with the advantage of the episode.

    A model may call it several times at once; the conversations then take place at the same time.
    Tokens and tool calls count as those of the episode, and its tools share the episode's sandbox.
    If the model's server or a tool fails in it, the rollout fails. If it exceeds a limit, or is
    called too often, the caller receives an error, and the episode continues.

    Example::

        class Library(vf.Environment):
            tools = [
                vf.SubAgent(
                    "research",
                    "Have an assistant find something out in the library.",
                    system_prompt="Look it up, and answer in one sentence.",
                    tools=[search],
                )
            ]

    Args:
        name: The tool's name.
        description: The tool's description, as the model reads it.
        system_prompt: The beginning of its conversation, unless None.
        tools: The sub-agent's tools, as an environment's are written. A method of the environment
            works on the episode.
        max_turns: Answers in one conversation.
        max_tokens: Tokens sampled in one conversation.
        max_calls: Conversations in one episode.
        timeout: Seconds that its tools may take in one conversation. All sub-agents together get
            half of the environment's ``timeout``. The answers of a served model do not count.

    Raises:
        ConfigError: If an argument is invalid; the message says what to write.
    """

    def __init__(
        self,
        name: str,
        description: str,
        *,
        system_prompt: str | None = None,
        tools: Sequence[Callable[..., Any] | ToolSet] = (),
        max_turns: int = 8,
        max_tokens: int = 2048,
        max_calls: int = 8,
        timeout: float = 60.0,
    ) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigError(
                f"vf.SubAgent: name = {name!r}: write letters, digits, _ and -, at most 64"
            )
        where = f"vf.SubAgent {name!r}"
        if not isinstance(description, str) or not description.strip():
            raise ConfigError(f"{where}: description is empty; say what the model can ask it for")
        limits = {"max_turns": max_turns, "max_tokens": max_tokens, "max_calls": max_calls}
        for field, limit in limits.items():
            if not isinstance(limit, int) or limit < 1:
                raise ConfigError(f"{where}: {field} = {limit!r} must be a positive whole number")
        if not isinstance(timeout, int | float) or not timeout > 0:
            raise ConfigError(
                f"{where}: timeout = {timeout!r} must be a positive number of seconds"
            )
        self.name, self.description = name, description.strip()
        self.max_turns, self.max_calls, self.timeout = max_turns, max_calls, timeout
        inner = self._environment = Environment()
        inner.id, inner.system_prompt, inner.tools = name, system_prompt, tools
        inner.max_turns, inner.max_tokens = max_turns, max_tokens
        try:
            inner.check_settings()
            entries = inner._tool_entries()
            for entry in entries:
                if isinstance(entry, SubAgent):
                    raise ConfigError(
                        f"tools holds {entry.name!r}: a sub-agent has no sub-agents of its own; "
                        "give both to the environment"
                    )
                if not isinstance(entry, ToolSet | Tool):
                    Tool.from_function(entry)
        except ConfigError as error:
            problem = str(error).removeprefix(f"environment {name}: ")
            raise ConfigError(f"{where}: {problem}") from error
        self._sets = [entry for entry in entries if isinstance(entry, ToolSet)]

    @property
    def services(self) -> list[Service]:
        """What its tools need."""
        return list(dict.fromkeys(service for entry in self._sets for service in entry.services))

    def bind(self, episode: Any) -> list[Tool]:
        """Return the tool of one episode.

        Raises:
            ConfigError: If the episode has several roles, or the tools cannot be used in time.
        """
        where = f"vf.SubAgent {self.name!r}"
        if isinstance(episode, MultiAgentEnvironment):
            raise ConfigError(
                f"{where}: a role cannot have a sub-agent as a tool; take it out of the role's "
                "tools, or make it a role of its own"
            )
        if self.timeout <= episode.tool_timeout:
            raise ConfigError(
                f"{where}: timeout = {self.timeout:g} must be more than the environment's "
                f"tool_timeout = {episode.tool_timeout:g}: a tool that hangs would look like a "
                "slow sub-agent; raise timeout, or lower tool_timeout"
            )
        tool = Tool.from_function(_Bound(self, episode).delegate)
        return [replace(tool, name=self.name, description=self.description)]

    def _definition(self, episode: Environment) -> Environment:
        """Return what is played; methods of the environment are those of the episode."""
        definition = copy.copy(self._environment)
        definition.tools = [
            getattr(episode, entry.__name__)
            if inspect.ismethod(entry) and isinstance(entry.__self__, Environment)
            else entry
            for entry in self._environment.tools
        ]
        return definition

    def _problem(self, reason: StopReason) -> str:
        why = _LIMITS.get(reason, reason.value).format(max_turns=self.max_turns)
        return f"{self.name} gave no answer: {why}"


class _Bound:
    """A sub-agent in one episode."""

    def __init__(self, agent: SubAgent, episode: Environment) -> None:
        self._agent, self._episode = agent, episode
        self._calls = 0

    async def delegate(self, task: str) -> str:
        """Replaced by the sub-agent's own description.

        Args:
            task: The task. Nothing else is known there: say all that is needed.
        """
        agent, nested = self._agent, self._episode._nested
        if not isinstance(nested, NestedEpisodes):
            raise ConfigError(
                f"vf.SubAgent {agent.name!r}: there is no model to play it, because this is not "
                "the rollout loop; play the environment with vf.rollout, vf.evaluate or a "
                "training run, or take it out of tools"
            )
        if not task.strip():
            raise ToolError("say in `task` what to do")
        if self._calls >= agent.max_calls:
            raise ToolError(f"{agent.name} can be called only {agent.max_calls} times")
        self._calls += 1
        question = Task(f"{self._episode.id}/{agent.name}", writable(task))
        reason, trace = await nested.play(
            agent._definition(self._episode), question, agent.name, agent.timeout
        )
        if reason is not StopReason.TERMINATED:
            raise ToolError(agent._problem(reason))
        return trace.reply.strip() or _SILENCE
