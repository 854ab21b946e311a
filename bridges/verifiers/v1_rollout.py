"""One rollout of a v1 taskset: verifiers' trace, kept as its own harness would leave it.

The conversation is that of verifiers' ``null`` harness: the system prompt, the prompt, answers, and
tool results, until the model calls no tool, or a ``@vf.stop`` says so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from vf.bridges.verifiers.conversion import to_ours, to_theirs
from vf.bridges.verifiers.v1_tools import Calls, Served, serve
from vf.traces.messages import Message
from vf.traces.trace import StopReason, ToolEvent, Trace

MODEL = "policy"
_LIMITS = {
    StopReason.MAX_TURNS: "max_turns",
    StopReason.MAX_TOKENS: "max_output_tokens",
    StopReason.MAX_SEQ_LEN: "context_length",
}


class V1Rollout:
    """One rollout.

    Args:
        task: verifiers' task.
        shared: The tool sets that all rollouts share.
        runtime: verifiers' runtime, where its functions take one.
    """

    def __init__(self, task: Any, shared: Sequence[Served], runtime: Any = None) -> None:
        import verifiers.v1 as v1
        from verifiers.v1.state import state_cls

        self.task, self.runtime = task, runtime
        agent = v1.AgentConfig(model=MODEL, runtime=v1.SubprocessConfig())
        self.trace = v1.Trace(
            task=v1.TraceTask(
                type=type(task).__name__, data=task.data, key=task.key, hash=task.hash
            ),
            state=state_cls(type(task))(),
            agent=v1.AgentInfo(config=agent),
        )
        self._v1 = v1
        self._stops = task.hooks("stop")
        self._own = [serve(toolset) for toolset in type(task).toolsets(task.config)]
        self._shared = list(shared)
        self._messages: list[Any] = prompt_of(task.data, v1)
        self._segment_start = len(self._messages)  # after the prompt, or the last of the user
        self._stack = contextlib.AsyncExitStack()

    async def open(self) -> list[Message]:
        """Set the task and its tools up; return the first messages."""
        from verifiers.v1.utils.decorators import invoke

        await invoke(self.task.setup, {"trace": self.trace, "runtime": self.runtime})
        for served in self._own:
            await served.open(self._stack, self.trace.task.data)
        self._calls = Calls(self.trace, [*self._own, *self._shared])
        return [to_ours(message) for message in self._messages]

    async def stopped(self) -> str | None:
        """Ask the ``@vf.stop`` methods; return the name of the first that says so."""
        from verifiers.v1.session import call_hook

        for stop in self._stops:
            if await call_hook(stop, {self._v1.Trace: self.trace}):
                self.trace.stop(stop.__name__)
                return str(stop.__name__)
        return None

    def add(self, reply: Message, finish_reason: str = "stop") -> None:
        """Record an answer of the model."""
        from verifiers.v1 import graph

        v1 = self._v1
        message = to_theirs(reply, v1, tools=bool(self._own or self._shared))
        response = v1.Response(
            id="", created=0, model=MODEL, message=message, finish_reason=finish_reason
        )
        node = graph.prepare_turn(self.trace, list(self._messages)).commit(response)
        self.trace.calls.append(
            v1.ModelCall(node=node, model=MODEL, finish_reason=response.finish_reason)
        )
        self._messages.append(response.message)

    def add_result(self, message: Message) -> None:
        """Record what a tool returned."""
        self._messages.append(
            self._v1.ToolMessage(tool_call_id=message.tool_call_id, content=message.content)
        )

    def add_user_messages(self, messages: Sequence[Any]) -> list[Message]:
        """Record the user's messages, which are verifiers'; return them as ours."""
        self._messages += messages
        self._segment_start = len(self._messages)
        return [to_ours(message) for message in messages]

    def segment(self) -> list[Any]:
        """Return the answers and tool results since the user's last message."""
        return self._messages[self._segment_start :]

    async def run_tools(self, reply: Message, events: list[ToolEvent], turn: int) -> list[Message]:
        """Run the answer's tool calls, one after the other as verifiers does."""
        results = []
        for call in reply.tool_calls:
            event = ToolEvent(turn, call.id, call.name, "ok")
            events.append(event)
            try:
                text = await self._calls.run(call, event)
            except Exception as error:
                event.kind, event.detail = "error", str(error)
                raise
            results.append(Message("tool", text, tool_call_id=call.id))
            self.add_result(results[-1])
        return results

    async def score(self, ours: Trace) -> Any:
        """Finish verifiers' trace as its rollout does, score it, and return it."""
        from verifiers.v1.utils.decorators import invoke

        trace = self.trace
        for call, turn in zip(trace.calls, ours.turns, strict=False):
            call.usage = self._v1.Usage(
                prompt_tokens=turn.prompt_tokens, completion_tokens=turn.completion_tokens
            )
            if turn.finish_reason == "length":
                call.finish_reason = "length"
        limit = _LIMITS.get(ours.stop_reason) if ours.stop_reason is not None else None
        condition = ours.info.get("verifiers", {}).get("stop_condition")
        trace.stop(limit or condition or "agent_completed")
        await invoke(self.task.finalize, {"trace": trace, "runtime": self.runtime})
        await self.task.score(trace, self.runtime)
        return trace

    async def close(self) -> None:
        """Close what the tool sets hold."""
        await self._stack.aclose()


def prompt_of(data: Any, v1: Any) -> list[Any]:
    """Return a task's first messages, as verifiers' ``null`` harness sends them."""
    messages = [v1.SystemMessage(content=data.system_prompt)] if data.system_prompt else []
    if data.prompt is None:  # a user opens the conversation
        return messages
    if isinstance(data.prompt, str):
        return [*messages, v1.UserMessage(content=data.prompt)]
    return [*messages, *data.prompt]
