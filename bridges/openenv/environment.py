"""Environments that an OpenEnv server runs, over OpenEnv's own client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, get_args

from pydantic import ValidationError

from vf.bridges.openenv.actions import (
    STEP,
    action_fields,
    render_observation,
    render_tool_result,
)
from vf.bridges.openenv.actions import text_field as find_text_field
from vf.bridges.openenv.description import describe
from vf.bridges.openenv.openenv_session import NO_ACTION, Answer, Session
from vf.bridges.seeded_games import check_returns, game_seeds, share_of
from vf.environments.environment import Environment, Split, Step
from vf.environments.generated import split_sizes
from vf.rubrics.rubric import Rubric
from vf.runtime.errors import ConfigError, EnvironmentFailure, RubricError, ToolError
from vf.runtime.extras import check_version, load
from vf.tools.json_schema import faults, validator
from vf.tools.tool_box import ToolBox, off_the_clock
from vf.traces.messages import Message
from vf.traces.task import Task
from vf.traces.tools import Tool
from vf.traces.trace import Trace

SUPPORTED = ("0.10", "0.11")
RewardOf = Literal["sum", "last"]
_TOOL_MARGIN = 5.0  # seconds, so that a session's own deadline is the one reported
_NOTHING_SEEN = "(nothing to see)"
_USE_TOOL = f"Act by calling the tool {STEP!r}."
_OVER = "the episode is over"


class OpenEnvEnvironment(Environment):
    """Act in an environment on an OpenEnv server, one session per episode.

    The server decides how the model acts. If an action has one field, a text, the reply is that
    text. Any other action is a call of the tool ``step``, whose arguments are the action's fields;
    a reply without a call is a lost turn. The tools of an MCP environment are the model's tools,
    and a reply without a call ends the episode.

    The outcome is the return ``R`` (the sum of the server's rewards, or the last one) as a share
    of the way from the one worth 0 to the one worth 1::

        outcome = min(1, max(0, (R - worst) / (best - worst)))

    An episode that the server did not end is worth 0 if it received no reward, and always where the
    worst return is below 0. One that the server ended without a reward has none: it is a failure of
    the server's.

    A task is a seed, given to the server's ``reset``. No seed is in both splits. What a server
    does with its seed is its own affair. ``Trace.info["openenv"]`` holds ``return``, ``rewards``,
    ``steps`` and ``done``.

    Args:
        url: The server's address, such as ``"http://localhost:8000"``.
        client: A client class from the environment's own package, instead of OpenEnv's generic one.
            Requires ``action``.
        action: Makes that client's action, given the fields by name: usually its action class.
        text_field: The field of an action that a reply's text fills, where it has several.
        as_tool: Make actions calls of the tool ``step`` even if they have a single text field.
        instructions: The start of the prompt; by default the server's own description.
        render: Returns the text of an observation, given its fields; by default their values.
        reset_args: Arguments of the server's ``reset`` in addition to the seed.
        reward: ``"sum"`` or ``"last"``: what the return is.
        returns: The returns worth 0 and 1: ``(worst, best)``.
        max_turns: Maximum replies in one episode. An episode that it ends is truncated.
        message_timeout: Seconds for one answer of the server, and to wait for a slot if it is full.
        headers: Headers sent with every request. A run saves its arguments, including these.
        num_train: Tasks in the train split.
        num_eval: Tasks in the eval split.
        seed: The seed of the tasks' seeds.

    Raises:
        ConfigError: If no OpenEnv server answers there, its actions are impossible for a model, an
            argument is out of range, or OpenEnv is missing or of a version that is not supported.
    """

    def __init__(
        self,
        url: str,
        client: type | None = None,
        action: Callable[..., Any] | None = None,
        text_field: str | None = None,
        as_tool: bool = False,
        instructions: str | None = None,
        render: Callable[[dict[str, Any]], str] | None = None,
        reset_args: Mapping[str, Any] | None = None,
        reward: RewardOf = "sum",
        returns: Sequence[float] = (0.0, 1.0),
        max_turns: int = 50,
        message_timeout: float = 60.0,
        headers: Mapping[str, str] | None = None,
        num_train: int = 2000,
        num_eval: int = 200,
        seed: int = 0,
    ) -> None:
        load("openenv", "openenv")
        check_version("openenv", "openenv", *SUPPORTED)
        self.sizes = split_sizes("openenv", num_train, num_eval)
        if max_turns < 1:
            raise ConfigError(f"openenv: max_turns must be at least 1, got {max_turns}")
        if not message_timeout > 0:
            raise ConfigError(f"openenv: message_timeout must be positive, got {message_timeout}")
        if reward not in get_args(RewardOf):
            raise ConfigError(f"openenv: reward must be 'sum' or 'last', got {reward!r}")
        self.returns = check_returns("openenv", returns)
        if client is not None and action is None:
            raise ConfigError("openenv: client needs action, which makes the actions it sends")
        if "seed" in (reset_args or {}):
            raise ConfigError("openenv: reset_args: the seed is the task's; leave it out")
        self.url = url
        self.max_turns = max_turns
        self.message_timeout = message_timeout
        self.tool_timeout = message_timeout + _TOOL_MARGIN
        self.seed = seed
        self.reward_of = reward
        self.reset_args = dict(reset_args or {})
        self._headers = dict(headers or {})
        self._client = client or load("openenv.core", "openenv").GenericEnvClient
        self._action = action or dict
        self._render = render or render_observation
        generic = load("openenv.core", "openenv").GenericEnvClient
        server = describe(url, lambda: self._connected(generic), self._headers, message_timeout)
        self.instructions = server.about if instructions is None else instructions
        self._mcp = server.tools
        self._fields = action_fields(server.action)
        tools: list[dict[str, Any]] = [{"name": STEP, "input_schema": self._fields}]
        self._validators = {
            tool["name"]: validator(
                tool["input_schema"],
                "openenv",
                f"openenv: {url}: the tool {tool['name']!r}: its schema",
            )
            for tool in self._mcp or tools
        }
        if self._mcp is not None and (text_field is not None or as_tool or client is not None):
            raise ConfigError(
                f"openenv: {url} is an MCP environment, whose tools are the model's: leave client, "
                "text_field and as_tool out"
            )
        self._text_field = (
            None if self._mcp else find_text_field(url, self._fields, text_field, as_tool)
        )
        self.rubric = Rubric(
            outcome=self.outcome, metrics={name: _recorded(name) for name in ("return", "steps")}
        )

    def outcome(self, trace: Trace) -> float:
        """The return as a share of the way from the worst to the best, in [0, 1].

        Raises:
            RubricError: If the server ended the episode, and gave no reward in it.
        """
        record = trace.info.get("openenv", {})
        rewards, done = record.get("rewards"), record.get("done", False)
        if done and not rewards:
            raise RubricError(
                f"openenv: {self.url}: the server ended the episode of task {trace.task.id!r} "
                "without any reward, which is not the same as 0"
            )
        if not rewards or (self.returns[0] < 0 and not done):
            return 0.0
        return share_of(float(record["return"]), self.returns)

    def tasks(self, split: Split) -> Iterator[Task]:
        """Yield seeds; those of the train split are even, those of the eval split odd."""
        seeds = game_seeds("openenv", self.seed, split, self.sizes[split])
        for index, number in enumerate(seeds):
            yield Task(f"{split}-{index}", self.instructions, info={"seed": number})

    async def reset(self, task: Task) -> list[Message]:
        """Open a session, and begin an episode with the task's seed."""
        self._rewards: list[float] = []
        self._steps, self._done = 0, False
        self._one_by_one = asyncio.Lock()
        self._session = self.hold(
            "session",
            lambda: Session(lambda: self._connected(self._client), self.url, self.message_timeout),
        )
        answer = await self._session.reset({"seed": int(task.info["seed"]), **self.reset_args})
        if answer.done:
            raise EnvironmentFailure(f"openenv: {self.url}: the episode was over at its reset")
        shown = self._render(answer.observation)
        prompt = "\n\n".join(part for part in (self.instructions, shown) if part)
        return self.first_messages(Task(task.id, prompt or _NOTHING_SEEN))

    async def step(self, reply: Message) -> Step:
        """Send the reply's actions, and return the server's observations."""
        before = sum(self._rewards)
        if self._text_field is not None and not reply.tool_calls:
            try:
                answer = await self._sent({self._text_field: reply.content})
                observation: str | list[Message] = self._render(answer.observation) or _NOTHING_SEEN
            except ToolError as error:
                observation = f"Error: {error}"
        elif reply.tool_calls:
            observation = await self.toolbox.run(
                reply.tool_calls, turn=self.turn, timeout=self.tool_timeout
            )
        elif self._mcp is not None:
            return Step(terminated=True, info=self._recorded())
        else:
            observation = _USE_TOOL
        return Step(
            observation,
            reward=sum(self._rewards) - before,
            terminated=self._done,
            info=self._recorded(),
        )

    @property
    def toolbox(self) -> ToolBox:
        """The server's tools, or the one tool that an action is; none where a reply is enough."""
        if self._toolbox is None:
            self._toolbox = ToolBox([*self._tools()])
        return self._toolbox

    def _tools(self) -> Iterator[Tool]:
        if self._mcp is None and self._text_field is None:
            fault = partial(faults, self._validators[STEP])
            about = "Act in the environment."
            yield Tool.from_schema(STEP, about, self._fields, self._step_tool, fault)
        for tool in self._mcp or ():
            name, about = tool["name"], str(tool.get("description") or "")
            fault = partial(faults, self._validators[name])
            yield Tool.from_schema(name, about, tool["input_schema"], self._tool_call(name), fault)

    async def _step_tool(self, /, **fields: Any) -> str:
        return self._render((await self._sent(fields)).observation) or _NOTHING_SEEN

    def _tool_call(self, name: str) -> Callable[..., Awaitable[str]]:
        async def call(**arguments: Any) -> str:
            action = {"type": "call_tool", "tool_name": name, "arguments": arguments}
            return render_tool_result((await self._sent(action)).observation)

        return call

    async def _sent(self, fields: dict[str, Any]) -> Answer:
        """Act; the actions of one turn go one after the other.

        Raises:
            ToolError: If the episode is over, or the server refuses the action.
        """
        with off_the_clock():
            await self._one_by_one.acquire()
        try:
            if self._done:
                raise ToolError(_OVER)
            answer = await self._session.step(self._made(fields))
            self._steps += 1
            self._done = answer.done
            if answer.reward is not None:
                self._rewards.append(answer.reward)
            return answer
        finally:
            self._one_by_one.release()

    def _made(self, fields: dict[str, Any]) -> Any:
        """Return an action; a class of the server's package may be stricter than its schema."""
        try:
            return self._action(**fields)
        except ValidationError as error:
            raise ToolError(NO_ACTION) from error

    def _recorded(self) -> dict[str, Any]:
        rewards = self._rewards
        total = sum(rewards) if self.reward_of == "sum" else (rewards[-1] if rewards else 0.0)
        record = {"return": total, "rewards": list(rewards), "steps": self._steps}
        return {"openenv": {**record, "done": self._done}}

    def _connected(self, kind: type) -> Any:
        """Make a client, without pings: a server that computes for long does not answer them."""
        return kind(
            base_url=self.url,
            connect_timeout_s=self.message_timeout,
            message_timeout_s=self.message_timeout,
            websocket_ping_interval_s=None,
            websocket_ping_timeout_s=None,
            headers=self._headers or None,
        )


def _recorded(name: str) -> Callable[[Trace], float]:
    def metric(trace: Trace) -> float:
        return float(trace.info.get("openenv", {}).get(name, 0.0))

    return metric
