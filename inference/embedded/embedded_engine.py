"""Generation on the trainer's own module, by continuous batching.

The engine samples from the very parameters that the trainer updates, so publishing new weights
copies nothing and is exact: it pauses the generation thread and counts the version up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager

from transformers import PreTrainedModel

from vf.inference.completions import Completion
from vf.inference.embedded.generation_thread import GenerationThread, Outcome
from vf.inference.embedded.lora_mixture import Lora
from vf.inference.embedded.request import Request
from vf.inference.embedded.sampler import Stream
from vf.inference.embedded.scheduler import Scheduler
from vf.inference.embedded.sight import Shown, Sight
from vf.inference.model import Sampling
from vf.inference.rendering.vision import Vision
from vf.inference.rotary import fix_rotary
from vf.runtime.errors import EngineError

log = logging.getLogger(__name__)


class EmbeddedEngine:
    """Serves token completions from a model that lives in this process.

    Args:
        model: The module to generate with, adapters included. Shared, never copied.
        max_seq_len: Most tokens in one context.
        max_requests: Most requests decoded at once; the rest wait their turn. The key-value cache
            has room for that many contexts of ``max_seq_len`` tokens.
        max_batch_tokens: Most tokens in one forward pass, prompts included.
        deterministic: Whether log-probabilities have the same bits whatever else is in a pass, and
            the trainer's; see :mod:`vf.inference.invariant`.
        record_experts: Whether requests may ask for the experts of their tokens.
        vision: The model's processor, for requests with images; None refuses them.

    Raises:
        EngineError: If the model cannot generate this way (from :meth:`start`).
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        max_seq_len: int,
        max_requests: int = 32,
        max_batch_tokens: int = 1024,
        deterministic: bool = False,
        record_experts: bool = False,
        vision: Vision | None = None,
    ) -> None:
        fix_rotary(model, max_seq_len)
        self.model = model
        self.max_seq_len = max_seq_len
        self._max_requests = max_requests
        self._max_batch_tokens = max_batch_tokens
        self._deterministic = deterministic
        self._record_experts = record_experts
        self._sight = None if vision is None else Sight(model, vision)
        self._vocabulary = 0  # until it starts
        self._version = 0
        self._thread: GenerationThread | None = None

    @property
    def version(self) -> int:
        """Version of the weights that sample now."""
        return self._version

    @property
    def sampled(self) -> int:
        """Tokens sampled so far, in all requests."""
        return 0 if self._thread is None else self._thread.scheduler.sampled

    @property
    def single_threaded(self) -> bool:
        """Whether one thread computes, so that other cores are free while it generates."""
        return self._thread is not None and self._thread.scheduler.small

    def start(self) -> None:
        """Start the generation thread.

        Raises:
            EngineError: If the model cannot generate this way, or there is no memory for its cache.
        """
        try:
            self._vocabulary = self.model.config.get_text_config().vocab_size
            scheduler = Scheduler(
                self.model,
                max_seq_len=self.max_seq_len,
                max_requests=self._max_requests,
                max_batch_tokens=self._max_batch_tokens,
                deterministic=self._deterministic,
                record_experts=self._record_experts,
                sight=self._sight,
            )
            scheduler.version = self._version
            scheduler.check()
        except MemoryError as error:
            raise EngineError(f"the embedded engine cannot make its cache: {error}") from error
        except (AttributeError, RuntimeError, TypeError, ValueError) as error:
            raise EngineError(
                f"this model cannot be served by the embedded engine: {error}"
            ) from error
        self._thread = GenerationThread(scheduler)
        self._thread.start()
        log.info(
            "started: %d requests at once, contexts of %d tokens, %d tokens in a pass",
            self._max_requests,
            self.max_seq_len,
            self._max_batch_tokens,
        )

    def stop(self) -> None:
        """Stop immediately; requests in progress fail. Safe to call twice."""
        if self._thread is not None:
            thread, self._thread = self._thread, None
            thread.stop()

    def check(self) -> None:
        """Do nothing if the engine is alive.

        Raises:
            EngineError: If the generation thread has died; the message says why.
        """
        self._alive().check()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hold generation still, so that the weights can change; requests under way continue.

        On a GPU, what either side has started is finished when the other begins.

        Raises:
            EngineError: If the engine is dead.
        """
        with self._alive().paused():
            yield

    def publish(self, version: int) -> None:
        """Make the weights now in the model known as ``version``.

        What was computed with earlier weights is shared with no request to come.

        Raises:
            EngineError: If the engine is dead.
        """
        thread = self._alive()
        with thread.paused():
            self._version = version
            thread.scheduler.publish(version)

    async def generate(
        self,
        prompt_ids: list[int],
        sampling: Sampling,
        stop_token_ids: list[int],
        lora: Lora | None = None,
    ) -> Completion:
        """Sample one completion, with an adapter if there is one.

        Raises:
            EngineError: If the engine died or refused the request.
        """
        run = self._run(prompt_ids, sampling, stop_token_ids, lora, every_token=False)
        async with aclosing(run) as completions:
            async for completion in completions:
                last = completion
        return last

    def stream(
        self,
        prompt_ids: list[int],
        sampling: Sampling,
        stop_token_ids: list[int],
        lora: Lora | None = None,
    ) -> AsyncGenerator[Completion, None]:
        """Sample one completion, yielding all of it so far after every token.

        Closing the generator cancels the request.

        Raises:
            EngineError: If the engine died or refused the request.
        """
        return self._run(prompt_ids, sampling, stop_token_ids, lora, every_token=True)

    async def _run(
        self,
        prompt_ids: list[int],
        sampling: Sampling,
        stop_token_ids: list[int],
        lora: Lora | None,
        *,
        every_token: bool,
    ) -> AsyncGenerator[Completion, None]:
        thread = self._alive()
        self._check_room(prompt_ids, sampling)
        stream = Stream(sampling, list(prompt_ids))
        shown = self._shown(prompt_ids, sampling)
        request = Request(stream, frozenset(stop_token_ids), every_token, lora, shown)
        outcomes: asyncio.Queue[Outcome] = asyncio.Queue()
        thread.add(request, outcomes)
        try:
            reason = None
            while reason is None:
                outcome = await outcomes.get()
                if isinstance(outcome, EngineError):
                    raise outcome
                end, reason = outcome.count, outcome.reason
                yield Completion(
                    stream.token_ids[:end],
                    stream.logprobs[:end],
                    stream.versions[:end],
                    reason,
                    tuple(stream.experts),
                    stream.supports[:end],
                )
        finally:
            thread.forget(request)

    def _shown(self, prompt_ids: list[int], sampling: Sampling) -> Shown | None:
        if not sampling.images:
            return None
        if self._sight is None:
            raise EngineError("this engine was started without a processor, and reads no images")
        return self._sight.read(prompt_ids, sampling.images)

    def _check_room(self, prompt_ids: list[int], sampling: Sampling) -> None:
        vocabulary = self._vocabulary
        if not prompt_ids or min(prompt_ids) < 0 or max(prompt_ids) >= vocabulary:
            raise EngineError(f"a prompt is one or more token ids in [0, {vocabulary})")
        if sampling.experts_from is not None:
            if not self._record_experts:
                raise EngineError("the experts of tokens are not recorded here")
            if not 0 <= sampling.experts_from < len(prompt_ids):
                raise EngineError("routed_experts_prompt_start is not a token of the prompt")
        if len(prompt_ids) + sampling.max_tokens > self.max_seq_len:
            raise EngineError(
                f"the prompt has {len(prompt_ids)} tokens and max_tokens is "
                f"{sampling.max_tokens}, but the context holds {self.max_seq_len}"
            )

    def _alive(self) -> GenerationThread:
        if self._thread is None:
            raise EngineError("the embedded engine is not running")
        self._thread.check()
        return self._thread
