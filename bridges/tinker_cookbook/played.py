"""An episode that another program samples for: prompts are handed out, and answers handed in."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from vf.environments.environment import Environment
from vf.evaluation.evaluate import lasting_rollout
from vf.inference.completions import Completion
from vf.inference.model import Sampling
from vf.inference.models.token_model import TokenModel
from vf.inference.rendering.renderer import Renderer
from vf.traces.task import Task
from vf.traces.trace import Trace


@dataclass
class _Request:
    """A prompt that waits for its answer."""

    prompt_ids: list[int]
    answer: asyncio.Future[Completion]


class _HandedOutSampler:
    """A sampler whose requests another program answers."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[_Request] = asyncio.Queue()

    async def complete(
        self,
        prompt_ids: list[int],
        sampling: Sampling,
        stop_token_ids: list[int],
        conversation: str = "",
    ) -> Completion:
        """Hand the prompt out, and wait for the answer."""
        request = _Request(prompt_ids, asyncio.get_running_loop().create_future())
        self.requests.put_nowait(request)
        return await request.answer


class PlayedEpisode:
    """One rollout, in a task of the event loop.

    Args:
        environment: The definition.
        task: The problem.
        renderer: Chat template and parser.
        max_prompt_len: Most tokens of a prompt: one that is longer ends the episode.
        seed: The seed of the episode.

    Attributes:
        trace: The trace, once the episode has ended; None before.
    """

    def __init__(
        self,
        environment: Environment,
        task: Task,
        renderer: Renderer,
        *,
        max_prompt_len: int,
        seed: int,
    ) -> None:
        self._sampler = _HandedOutSampler()
        self._model = TokenModel(self._sampler, renderer, max_seq_len=max_prompt_len + 1)
        self._definition, self._task, self._seed = environment, task, seed
        self._playing: asyncio.Task[Trace] | None = None
        self._request: _Request | None = None
        self.trace: Trace | None = None

    async def begin(self) -> list[int] | None:
        """Begin the episode, and return its first prompt; None if it ended before."""
        rollout = lasting_rollout(self._definition, self._task, self._model, seed=self._seed)
        self._playing = asyncio.create_task(rollout)
        return await self._next_prompt()

    async def answer(self, token_ids: list[int], *, cut: bool) -> list[int] | None:
        """Answer the prompt, and return the next; None once the episode has ended.

        Args:
            token_ids: The sampled tokens, the stop token included.
            cut: Whether it ended because it had as many tokens as it may have.
        """
        request, self._request = self._request, None
        assert request is not None, "the episode waits for no answer"
        count = len(token_ids)
        # Whoever samples keeps the log-probabilities: nothing is trained from this trace.
        answer = Completion(token_ids, [0.0] * count, [0] * count, "length" if cut else "stop")
        request.answer.set_result(answer)
        return await self._next_prompt()

    async def stop(self) -> None:
        """End the episode, closing its environment. Safe to call twice."""
        if self._playing is not None and not self._playing.done():
            self._playing.cancel()
            await asyncio.wait([self._playing])

    async def _next_prompt(self) -> list[int] | None:
        assert self._playing is not None
        request = asyncio.ensure_future(self._sampler.requests.get())
        await asyncio.wait([request, self._playing], return_when=asyncio.FIRST_COMPLETED)
        if request.done():
            self._request = request.result()
            return self._request.prompt_ids
        request.cancel()
        self.trace = self._playing.result()
        return None
