"""A v0 environment of verifiers (what ``load_environment`` returns) as vf-rl's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from vf.bridges.verifiers.checks import leaves
from vf.bridges.verifiers.conversion import announced
from vf.bridges.verifiers.exchange import Exchange
from vf.bridges.verifiers.v0_rubric import (
    EpisodeRubric,
    GroupedRubric,
    TheirRubric,
    ranges_of,
)
from vf.environments.environment import Environment, Split, Step
from vf.runtime.errors import ConfigError, EnvironmentFailure, SandboxError, ToolFailure
from vf.tools.tool_box import ToolBox
from vf.traces.messages import Message, as_messages
from vf.traces.task import Task
from vf.traces.trace import ToolEvent

NO_LIMIT = 100  # turns, where the environment sets no limit
_SCORING = 60.0  # seconds beyond the environment's own limit
_LIMITS = ("max_turns_reached", "max_total_completion_tokens_reached", "timeout_reached")


class V0Environment(Environment):
    """A verifiers environment of the v0 API.

    verifiers' own code runs the rollout (see
    :mod:`~vf.bridges.verifiers.exchange`) and scores it.
    ``Trace.info["verifiers"]`` holds the ``stop_condition``.

    Args:
        name: Its name, for messages.
        theirs: The verifiers environment, which passed
            :func:`~vf.bridges.verifiers.checks.check_v0`.
        reward_range_given: The rewards worth 0 and 1; see
            :mod:`~vf.bridges.verifiers.rewards`.

    Raises:
        ConfigError: If its rubric cannot be used, or ``reward_range_given`` is not valid.
    """

    def __init__(
        self, name: str, theirs: Any, reward_range_given: Sequence[float] | None = None
    ) -> None:
        self.name = name
        self.theirs = theirs
        limits = [environment.max_turns for environment in leaves(theirs)]
        self.max_turns = max(limits) if min(limits) > 0 else max(NO_LIMIT, *limits)
        seconds = getattr(theirs, "timeout_seconds", None)
        if seconds is not None:
            self.timeout = max(self.timeout, seconds + _SCORING)
        self._schemas = list(leaves(theirs)[0].tool_defs or ())
        for environment in leaves(theirs):
            watch(environment)
        scale = ranges_of(name, reward_range_given, theirs.rubric)
        grouped = theirs.rubric.has_group_rewards
        self.rubric = (GroupedRubric if grouped else TheirRubric)(name, theirs, scale)

    def tasks(self, split: Split) -> Iterator[Task]:
        """Yield the rows of its dataset; for the eval split, those of its eval dataset if any.

        Raises:
            ConfigError: If it has no rows for the split, or one that cannot be used here.
        """
        theirs = self.theirs
        if split == "train" and theirs.build_dataset() is None:
            raise ConfigError(f"{self.name}: it has no train dataset, only one for evaluation")
        dataset = theirs.get_dataset() if split == "train" else theirs.get_eval_dataset()
        seen: dict[str, int] = {}
        for row in dataset:
            task = self._task(split, row)
            count = seen[task.id] = seen.get(task.id, 0) + 1
            if count > 1:
                task.id = f"{task.id}-{count}"
            yield task

    def _task(self, split: Split, row: Mapping[str, Any]) -> Task:
        id = f"{split}-{row['example_id']}"
        info = {key: value for key, value in row.items() if key not in ("prompt", "answer")}
        label = f"{self.name}: task {id!r}"
        try:
            as_messages(row["prompt"])
            json.dumps(info)
        except (ConfigError, TypeError, ValueError) as error:
            raise ConfigError(f"{label} cannot be shown as text, or saved: {error}") from error
        if "tool_defs" in (_parsed(row.get("info")) or {}):
            raise ConfigError(
                f"{label} brings tools of its own; all tasks must have the same tools"
            )
        if row.get("answer", "") is None:
            info["answer"] = None
        prompt = row["prompt"]
        if isinstance(prompt, str):  # verifiers' clients of chat APIs send it as a user's message
            prompt = [{"role": "user", "content": prompt}]
        return Task(id, list(prompt), row.get("answer"), info)

    async def reset(self, task: Task) -> list[Message]:
        """Start its rollout, and return what it shows the model first."""
        self._errors = watched()
        self._exchange = Exchange(self.theirs, task, list(self.toolbox.tools))
        self.rubric = EpisodeRubric(self.rubric, self._exchange)
        messages = await self._exchange.next()
        if messages is None:
            self._check_error()
            raise EnvironmentFailure(f"{self.name}: the rollout ended before the model was asked")
        return messages

    async def step(self, reply: Message) -> Step:
        """Give its rollout the model's answer, and return its next messages."""
        messages = await self._exchange.answer(reply)
        if messages is not None:
            self._note_calls(reply, messages)
            return Step(messages)
        self._check_error()
        state = self._exchange.state
        condition = state.get("stop_condition")
        answers = self._exchange.final_messages()
        self._note_calls(reply, answers)
        cut = condition in _LIMITS and (condition, self.max_turns) != ("max_turns_reached", 1)
        return Step(
            answers,
            terminated=not cut,
            truncated=cut,
            info={"verifiers": {"stop_condition": condition}},
        )

    async def close(self) -> None:
        """End its rollout, and let it and its rubric clean up."""
        exchange: Exchange | None = self.__dict__.pop("_exchange", None)
        if exchange is not None:
            await exchange.close()
            if exchange.state is not None:
                await self.theirs.rubric.cleanup(exchange.state)

    @property
    def toolbox(self) -> ToolBox:
        """Its tools with their schemas for the model; its own code runs them."""
        if self._toolbox is None:
            self._toolbox = ToolBox(
                [announced(tool.name, tool.description, tool.parameters) for tool in self._schemas]
            )
        return self._toolbox

    def _check_error(self) -> None:
        """Raise what made its rollout end early, as a failure of the rollout."""
        error = self._exchange.state.get("error")
        if error is None:
            return
        import verifiers.legacy as verifiers

        kinds = {verifiers.ToolError: ToolFailure, verifiers.SandboxError: SandboxError}
        kind = next((ours for cls, ours in kinds.items() if isinstance(error, cls)), None)
        cause = error.__cause__ or error
        raise (kind or EnvironmentFailure)(
            f"{self.name}: {type(error).__name__}: {type(cause).__name__}: {cause}"
        ) from error

    def _note_calls(self, reply: Message, answers: Sequence[Message]) -> None:
        """Record the outcomes of the reply's tool calls."""
        texts = [message.content for message in answers if message.role == "tool"]
        failed = failed_calls(texts, self._errors)
        for index, call in enumerate(reply.tool_calls):
            event = ToolEvent(self.turn, call.id, call.name, "ok")
            if call.malformed is not None:
                event.kind, event.detail = "malformed", call.malformed
            elif call.name not in self.toolbox.tools:
                event.kind, event.detail = "unknown_tool", call.name
            elif index in failed:
                event.kind = "invalid_json" if _parsed(call.arguments) is None else "rejected"
                event.detail = failed[index]
            self.tool_events.append(event)


def _parsed(text: Any) -> Any:
    """Return JSON text as a value, anything but text unchanged, and None for bad JSON."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


# Errors of tools, which a `ToolEnv` only shows the model: its `error_formatter` is watched.
Errors = list[tuple[str, str]]  # the text that the model saw, and the error
_errors: ContextVar[Errors] = ContextVar("errors")


def watched() -> Errors:
    """Return the list that errors of the rollout that begins now will be added to."""
    errors: Errors = []
    _errors.set(errors)
    return errors


def watch(environment: Any) -> None:
    """Note what an environment's tools raise. A dead connection ends the rollout instead.

    For that verifiers has ``stop_errors``; to train a model on the text of such an error would
    make an outage part of the task.
    """
    formatter = getattr(environment, "error_formatter", None)
    if formatter is None:
        return
    import httpx

    environment.error_formatter = _noting(formatter)
    # A new list, for the default may be shared with other environments.
    environment.stop_errors = [*environment.stop_errors, ConnectionError, httpx.TransportError]


def failed_calls(texts: Sequence[str], errors: Errors) -> dict[int, str]:
    """Return the errors of a turn's tool messages, by index; empties ``errors``.

    Calls run one after the other, so errors and messages are in one order.
    """
    failed = {}
    pending = list(errors)
    errors.clear()
    for index, text in enumerate(texts):
        if pending and text == pending[0][0]:
            failed[index] = pending.pop(0)[1]
    return failed


def _noting(formatter: Callable[[Exception], str]) -> Callable[[Exception], str]:
    def noting(error: Exception) -> str:
        text = formatter(error)
        if (errors := _errors.get(None)) is not None:
            errors.append((text, f"{type(error).__name__}: {error}"))
        return text

    return noting
