"""One request to the embedded server, from its parameters to its answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

from vf.inference.completions import Completion
from vf.inference.embedded.embedded_engine import EmbeddedEngine
from vf.inference.embedded.protocol import SamplingFields
from vf.inference.rendering.renderer import Renderer


@dataclass(frozen=True, slots=True)
class Answer:
    """One choice: what was sampled, its text, and why it ended (None while it goes on)."""

    completion: Completion
    text: str
    finish_reason: Literal["stop", "length"] | None


@dataclass(frozen=True, slots=True)
class Job:
    """A checked request: all that is needed to sample its choices.

    Attributes:
        engine: Who samples.
        renderer: Turns ids into text.
        body: The request as it came.
        prompt_ids: The prompt.
        max_tokens: Most tokens to sample for a choice.
        stops: Token ids that end a choice.
    """

    engine: EmbeddedEngine
    renderer: Renderer
    body: SamplingFields
    prompt_ids: list[int]
    max_tokens: int
    stops: list[int]

    async def answers(self) -> list[Answer]:
        """Sample all choices at once; where one fails, the others are given up.

        Raises:
            EngineError: The engine died or refused the request.
        """
        tasks = [asyncio.create_task(self._answer(index)) for index in range(self.body.n)]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def growing(self, index: int) -> AsyncGenerator[Answer, None]:
        """Yield one choice after every token; it ends at the first stop string.

        Raises:
            EngineError: The engine died or refused the request.
        """
        sampling = self.body.sampling(self.max_tokens, index)
        async with aclosing(self.engine.stream(self.prompt_ids, sampling, self.stops)) as stream:
            async for completion in stream:
                answer = self._read(completion)
                yield answer
                if answer.finish_reason is not None:
                    return

    async def _answer(self, index: int) -> Answer:
        if not self.body.stop_strings():
            sampling = self.body.sampling(self.max_tokens, index)
            return self._read(await self.engine.generate(self.prompt_ids, sampling, self.stops))
        async with aclosing(self.growing(index)) as answers:
            async for answer in answers:
                last = answer
        return last

    def _read(self, completion: Completion) -> Answer:
        ids = completion.token_ids
        text = self.renderer.decode(ids[:-1] if ids and ids[-1] in self.stops else ids)
        found = [place for stop in self.body.stop_strings() if (place := text.find(stop)) >= 0]
        if found:
            return Answer(completion, text[: min(found)], "stop")
        return Answer(completion, text, completion.finish_reason)
