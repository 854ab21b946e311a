"""Generation on the trainer's own module, by transformers' continuous batching.

The engine samples from the very parameters that the trainer updates, so publishing new weights
copies nothing and is exact: it pauses the generation loop and counts the version up.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack, aclosing, contextmanager, suppress
from typing import Any, Literal

from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching.cb_logits_processors import (
    ContinuousBatchingLogitsProcessorList,
)
from transformers.generation.continuous_batching.continuous_api import OutputRouter
from transformers.generation.logits_process import LogitsProcessorList

from vf.inference.completions import Completion
from vf.inference.embedded import paged_attention
from vf.inference.embedded.sampler import SeededSampler, Stream
from vf.inference.model import Sampling
from vf.runtime.errors import EngineError


class Outputs(OutputRouter):  # type: ignore[misc]
    """Gives each request's outputs to its own event loop, and drops what nobody waits for.

    transformers' own router sends a whole batch to one loop, keeps the handlers of cancelled
    requests, and lets a closed loop kill the generation thread.
    """

    def __init__(self) -> None:
        super().__init__()
        self._waiting: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.Queue[Any]]] = {}

    @contextmanager
    def of(self, request_id: str) -> Iterator[asyncio.Queue[Any]]:
        """Collect the outputs of a request, on the running loop, while the context is open."""
        queue: asyncio.Queue[Any] = asyncio.Queue()
        self._waiting[request_id] = asyncio.get_running_loop(), queue
        try:
            yield queue
        finally:
            del self._waiting[request_id]

    def deliver(self, output: Any) -> None:
        """Hand over one output. Called on the generation thread."""
        if (waiting := self._waiting.get(output.request_id)) is not None:
            loop, queue = waiting
            with suppress(RuntimeError):  # the loop has closed: nobody waits any more
                loop.call_soon_threadsafe(queue.put_nowait, output)

    def deliver_batch(self, outputs: list[Any]) -> None:
        """Hand over the outputs of one forward pass. Called on the generation thread."""
        for output in outputs:
            self.deliver(output)


PAGE_TOKENS = 16  # a shared prefix is found in whole pages
POLL_SECONDS = 0.5  # how soon a request notices that the generation thread has died


class EmbeddedEngine:
    """Serves token completions from a model that lives in this process.

    Args:
        model: The module to generate with, adapters included. Shared, never copied.
        max_seq_len: Most tokens in one context.
        max_requests: Most requests decoded at once; the rest wait their turn. The key-value cache
            has room for so many contexts of ``max_seq_len`` tokens.
        max_batch_tokens: Most tokens in one forward pass, prompts included.

    Raises:
        EngineError: The model cannot generate this way (from :meth:`start`).
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        max_seq_len: int,
        max_requests: int = 32,
        max_batch_tokens: int = 1024,
    ) -> None:
        self.model = model
        self.max_seq_len = max_seq_len
        self._max_requests = max_requests
        self._max_batch_tokens = max_batch_tokens
        self._sampler = SeededSampler()
        self._outputs = Outputs()
        self._manager: Any = None
        self._ids = itertools.count()
        self._sampled = 0  # tokens, in requests that have ended

    @property
    def version(self) -> int:
        """Version of the weights that sample now."""
        return self._sampler.version

    @property
    def sampled(self) -> int:
        """Tokens sampled so far, in all requests. To be read where the requests are made."""
        streams = self._sampler.streams.values()
        return self._sampled + sum(len(stream.token_ids) for stream in streams)

    def start(self) -> None:
        """Start the generation thread.

        Raises:
            EngineError: The model cannot generate this way, or there is no memory for its cache.
        """
        blocks_per_request = math.ceil(self.max_seq_len / PAGE_TOKENS) + 1
        config = ContinuousBatchingConfig(
            page_size=PAGE_TOKENS,
            num_blocks=blocks_per_request * self._max_requests,
            max_batch_tokens=self._max_batch_tokens,
            max_requests_per_batch=self._max_requests,
            allow_block_sharing=True,
            # The sampler keeps its books in Python: no graphs, one batch at a time.
            use_cuda_graph=False,
            use_async_batching=False,
            # The trainer runs on this very module: its attention stays as it was loaded.
            auto_switch_to_flash=False,
        )
        generation = GenerationConfig(do_sample=False, eos_token_id=-1)
        try:
            self._manager = self.model.init_continuous_batching(generation, config)
        except (AttributeError, ValueError, TypeError) as error:
            raise EngineError(
                f"this model cannot be served by the embedded engine: {error}"
            ) from error
        processors = ContinuousBatchingLogitsProcessorList(LogitsProcessorList([self._sampler]))
        processors.tensors_required = 1
        self._manager.logit_processor = processors
        self._manager.output_router = self._outputs
        if paged_attention.serves(self.model):
            self._manager.model = paged_attention.PagedModel(self.model)
            try:
                with paged_attention.selected(self.model):
                    self._manager.warmup()  # builds the cache, without a mask now
            except (MemoryError, RuntimeError, ValueError) as error:
                raise EngineError(f"the embedded engine cannot make its cache: {error}") from error
        # The generation thread is a daemon if the thread that starts it is one. So a process whose
        # engine was not stopped can still end.
        starter = threading.Thread(target=self._manager.start, daemon=True)
        starter.start()
        starter.join()

    def stop(self) -> None:
        """Stop immediately; requests in progress fail. Safe to call twice."""
        if self._manager is not None:
            manager, self._manager = self._manager, None
            manager.stop(block=True, timeout=30.0, hard_stop=True)

    def check(self) -> None:
        """Do nothing if the engine is alive.

        Raises:
            EngineError: The generation thread has died; the message says of what.
        """
        if self._manager is None:
            raise EngineError("the embedded engine is not running")
        if not self._manager.is_running():
            cause = self._manager.background_thread_status.fatal_error
            raise EngineError(f"the embedded engine's thread died: {cause!r}") from cause

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hold generation still, so that the weights can change; requests under way continue.

        Raises:
            EngineError: The engine is dead.
        """
        self.check()
        with ExitStack() as stack:
            try:
                stack.enter_context(self._manager.pause())
            except RuntimeError as error:  # the thread died while we waited for it
                raise EngineError(f"the embedded engine cannot pause: {error}") from error
            yield

    def publish(self, version: int) -> None:
        """Make the weights now in the model known as ``version``.

        Prefixes that were computed with earlier weights are shared with no request to come.
        """
        with self.paused():
            self._sampler.version = version
            self._forget_prefixes()

    def _forget_prefixes(self) -> None:
        """Drop all shared prefixes.

        Requests under way keep their own, of earlier weights, and would offer them again: while
        there are any, nothing is shared until the next publish.
        """
        if self._manager.batch_processor is None:
            return
        cache = self._manager.batch_processor.cache
        cache.evict_cached_blocks()
        allocators = list(cache.cache_allocators.values())
        for allocator in allocators:
            allocator.ledger.hash_to_block.clear()
            allocator.ledger.block_to_hash.clear()
        cache.allow_block_sharing = not self._sampler.streams
        cache.use_prefix_sharing = cache.allow_block_sharing and all(
            allocator.use_block_sharing for allocator in allocators
        )

    async def generate(
        self, prompt_ids: list[int], sampling: Sampling, stop_token_ids: list[int]
    ) -> Completion:
        """Sample one completion.

        Raises:
            EngineError: The engine died or refused the request.
        """
        run = self._run(prompt_ids, sampling, stop_token_ids, every_token=False)
        async with aclosing(run) as completions:
            async for completion in completions:
                last = completion
        return last

    def stream(
        self, prompt_ids: list[int], sampling: Sampling, stop_token_ids: list[int]
    ) -> AsyncGenerator[Completion, None]:
        """Sample one completion, yielding all of it so far after every token.

        Closing the generator cancels the request.

        Raises:
            EngineError: The engine died or refused the request.
        """
        return self._run(prompt_ids, sampling, stop_token_ids, every_token=True)

    async def _run(
        self,
        prompt_ids: list[int],
        sampling: Sampling,
        stop_token_ids: list[int],
        *,
        every_token: bool,
    ) -> AsyncGenerator[Completion, None]:
        self.check()
        request_id = f"vf-{next(self._ids)}"
        stream = self._sampler.streams[request_id] = Stream(sampling, prompt_ids)
        manager, finished = self._manager, False
        with self._outputs.of(request_id) as outputs:
            try:
                manager.add_request(
                    list(prompt_ids),
                    request_id=request_id,
                    max_new_tokens=sampling.max_tokens,
                    eos_token_id=list(stop_token_ids),
                    streaming=every_token,
                )
                while not finished:
                    output = await self._next(outputs)
                    if output.error is not None:
                        raise EngineError(f"the embedded engine failed the request: {output.error}")
                    finished = output.is_finished()
                    count = len(output.generated_tokens)
                    yield _completion(stream, count, finished, stop_token_ids)
            finally:
                if not finished:
                    manager.cancel_request(request_id)
                self._sampler.streams.pop(request_id, None)
                self._sampled += len(stream.token_ids)

    async def _next(self, outputs: asyncio.Queue[Any]) -> Any:
        while True:
            try:
                # Not wait_for: before Python 3.12 it swallows a cancellation that comes with an
                # output, and the request would run on.
                async with asyncio.timeout(POLL_SECONDS):
                    return await outputs.get()
            except TimeoutError:
                self.check()


def _completion(
    stream: Stream, count: int, finished: bool, stop_token_ids: list[int]
) -> Completion:
    ids = stream.token_ids[:count]
    reason: Literal["stop", "length"] | None = None
    if finished:
        reason = "stop" if ids and ids[-1] in stop_token_ids else "length"
    return Completion(ids, stream.logprobs[:count], stream.versions[:count], reason)
