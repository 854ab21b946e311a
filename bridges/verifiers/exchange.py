"""A verifiers rollout, suspended while vf-rl's model answers.

verifiers runs a rollout itself and asks a client for the model's answers. Here that client hands
each request out and waits for the answer to be handed in, so that its own code does everything
else: setup, stop conditions, tools, its time limit, cleanup.
"""

from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass
from typing import Any

from vf.bridges.verifiers.conversion import same, to_ours, to_theirs
from vf.runtime.errors import EnvironmentFailure
from vf.traces.messages import Message, as_messages
from vf.traces.task import Task

MODEL = "policy"  # what state["model"] says


@dataclass(slots=True)
class _Request:
    """A request to the model, and the future of its answer."""

    prompt: list[Any]
    tools: list[str]
    answer: asyncio.Future[Any]


class Exchange:
    """One rollout of a verifiers environment, turn by turn.

    Args:
        environment: The verifiers environment.
        task: The task; :func:`row_of` is what verifiers gets.
        tools: The names of the tools that the model was shown.
    """

    def __init__(self, environment: Any, task: Task, tools: list[str]) -> None:
        import verifiers.legacy.types as types

        self._types = types
        self._tools = tools
        self._conversation: list[Any] = []  # the messages so far
        self._request: _Request | None = None
        self._requests: asyncio.Queue[_Request | None] = asyncio.Queue()
        rollout = environment.rollout(row_of(task), client_type()(self._ask), MODEL, {})
        self._task = asyncio.create_task(rollout)
        self._task.add_done_callback(lambda task: self._requests.put_nowait(None))

    @property
    def state(self) -> Any:
        """verifiers' state once its rollout has ended, else None."""
        task = self._task
        ended = task.done() and not task.cancelled() and task.exception() is None
        return task.result() if ended else None

    def final_messages(self) -> list[Message]:
        """Return the environment's messages at the end, which ask for no answer."""
        state = self.state
        response = state and state.get("final_env_response")
        if isinstance(response, str):
            return [Message("user", response)]
        return [to_ours(message) for message in response or ()]

    async def next(self) -> list[Message] | None:
        """Wait for the environment's next messages; None when the rollout has ended.

        Raises:
            EnvironmentFailure: If its request does not continue the conversation, or offers other
                tools than it did at first.
            Exception: If the environment's code raised it.
        """
        self._request = await self._requests.get()
        if self._request is None:
            self._task.result()
            return None
        prompt, earlier = self._request.prompt, self._conversation
        grown = len(prompt) > len(earlier) or not earlier
        if not grown or not all(map(same, earlier, prompt)):
            raise EnvironmentFailure(
                "verifiers: the environment asks the model something that does not continue the "
                "conversation (it rewrites earlier messages, or talks to a second model); that "
                "cannot be trained on here"
            )
        if self._request.tools != self._tools:
            raise EnvironmentFailure(
                f"verifiers: the environment offers the tools {self._request.tools} in this "
                f"rollout, and {self._tools} when it was loaded; they must be the same"
            )
        self._conversation = list(prompt)
        return [to_ours(message) for message in prompt[len(earlier) :]]

    async def answer(self, reply: Message) -> list[Message] | None:
        """Hand in the model's answer, and wait for the environment's next messages."""
        assert self._request is not None
        types = self._types
        message = to_theirs(
            reply,
            types,
            tools=bool(self._tools),
            finish_reason="tool_calls" if reply.tool_calls else "stop",
            is_truncated=False,
        )
        self._conversation.append(message)
        if not self._request.answer.done():  # else its own time limit has passed meanwhile
            self._request.answer.set_result(
                types.Response(id="", created=0, model=MODEL, usage=None, message=message)
            )
        return await self.next()

    async def finish(self) -> Any:
        """Return verifiers' state. A waiting rollout gets the error that its prompt is too long.

        That is how a rollout ends there when a limit of vf-rl ended it here.
        """
        if self._request is not None and not self._request.answer.done():
            import verifiers.legacy as verifiers

            self._request.answer.set_exception(verifiers.OverlongPromptError("a limit of vf-rl"))
        return await self._task

    async def close(self) -> None:
        """End the rollout, if it has not ended, and let it clean up.

        Raises:
            Exception: If its cleanup raised it.
        """
        if self._task.done():
            return
        self._task.cancel()
        await asyncio.wait({self._task})
        if not self._task.cancelled() and (error := self._task.exception()) is not None:
            raise error

    async def _ask(self, prompt: list[Any], tools: list[Any] | None) -> Any:
        answer = asyncio.get_running_loop().create_future()
        names = [tool.name for tool in tools or ()]
        self._requests.put_nowait(_Request(list(prompt), names, answer))
        return await answer


def row_of(task: Task) -> dict[str, Any]:
    """Return the row of verifiers' dataset that a task was made of.

    For a task that somebody wrote themselves, what a row must have is filled in.
    """
    prompt = [message.to_openai() for message in as_messages(task.prompt)]
    row = {"example_id": 0, **task.info, "prompt": prompt}
    return row if task.answer is None else row | {"answer": task.answer}


@functools.cache
def client_type() -> Any:
    """Return the class of the client; made at first need, for verifiers is optional."""
    from verifiers.legacy.clients import Client

    class HeldClient(Client):  # type: ignore[misc]
        def __init__(self, ask: Any) -> None:
            super().__init__(None)
            self._ask = ask

        async def get_response(
            self,
            prompt: Any,
            model: str,
            sampling_args: Any,
            tools: Any = None,
            **kwargs: Any,
        ) -> Any:
            return await self._ask(prompt, tools)

    # What is left abstract turns messages into an API's, and only get_response called it.
    HeldClient.__abstractmethods__ = frozenset()
    return HeldClient
