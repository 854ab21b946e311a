"""Which tokens of which requests are in the next forward pass, and what comes of it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch

from vf.inference import invariant
from vf.inference.embedded.adapters import LoraLayers
from vf.inference.embedded.attention import Pass, attending
from vf.inference.embedded.cache import KeyValueCache
from vf.inference.embedded.contexts import Context, Contexts, common, most_shared
from vf.inference.embedded.experts import ExpertsStore
from vf.inference.embedded.lora_mixture import LoraMixture, parts_of
from vf.inference.embedded.recurrent import RecurrentStates, Tokens
from vf.inference.embedded.request import News, Reason, Request
from vf.inference.embedded.sampler import Stream, sample
from vf.inference.embedded.sight import Sight, positions_of
from vf.inference.embedded.spans import Query
from vf.inference.model import Sampling

WORTH = 8  # tokens that are worth a copy, or a pass of waiting for whoever computes them
# FLOPs of a pass in which all decode. Operations of smaller ones are so short that threads would
# wait for one another, above all where rollouts or other programs use the cores, too.
SMALL = 1e9
SAVED = 2048  # keys that need not be read again; for fewer, one call for all tokens is faster
CHECKED = 8  # tokens that a model is checked with
# Relative differences of logits that rounding explains.
TOLERANCE = {torch.float32: 0.01, torch.float64: 1e-6}
LOW_PRECISION = 0.1
NO_TOKEN = (
    "no token can be sampled: the probabilities are not finite. Either the model's logits are not, "
    "or the request's temperature or repetition_penalty is too extreme"
)


class Scheduler:
    """Runs requests by continuous batching: in each pass all that decode, and pieces of prompts.

    All of it is called by one thread at a time.

    Args:
        model: A causal language model of transformers'.
        max_seq_len: Most tokens in one context.
        max_requests: Most requests that run; the rest wait their turn.
        max_batch_tokens: Most tokens in a pass.
        deterministic: Whether a token's logits have the same bits whatever else is in a pass.
        record_experts: Whether requests may ask for the experts of their tokens.
        sight: Images for the model; None if it gets none.

    Raises:
        MemoryError: If there is no room for the books.
        ValueError: If a setting does not suit the model.

    Attributes:
        device: Where the model is.
        small: Whether a pass is so short that one thread computes it.
        version: Of the weights; stamped on every token.
        sampled: Tokens so far, in all requests.
    """

    def __init__(
        self,
        model: Any,
        *,
        max_seq_len: int,
        max_requests: int,
        max_batch_tokens: int,
        deterministic: bool = False,
        record_experts: bool = False,
        sight: Sight | None = None,
    ) -> None:
        self._model, self._sight = model, sight
        self.device: torch.device = model.get_input_embeddings().weight.device
        self._deterministic = deterministic
        dtypes = {parameter.dtype for parameter in model.parameters()}
        if deterministic and (self.device.type != "cpu" or dtypes != {torch.float32}):
            raise ValueError(
                "trainer.args.deterministic = true is for the embedded engine in float32 on a CPU; "
                'set bf16 = false and hide the GPUs, or set inference.engine = "vllm"'
            )
        self._lora, self._mixture = LoraLayers(model), LoraMixture(model)
        self._recurrent = RecurrentStates(model, self._mixture)  # false where it has none
        if deterministic and self._recurrent:
            raise ValueError("deterministic = true, but the model has recurrent layers")
        self._max_seq_len, self._max_requests = max_seq_len, max_requests
        self._contexts = self._no_contexts()
        self._cache = KeyValueCache(max_requests, self._contexts.slot)
        positions = max_requests * self._contexts.slot
        self._experts = ExpertsStore(model, positions) if record_experts else None
        self._most = min(max_requests, max_batch_tokens)  # so each has a token in every pass
        self._max_batch_tokens = max_batch_tokens
        parameters = sum(parameter.numel() for parameter in model.parameters())
        work = 2 * parameters * max_requests
        self.small = self.device.type == "cpu" and work < SMALL
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self.version = 0
        self.sampled = 0

    @property
    def busy(self) -> bool:
        """Whether there is any request."""
        return bool(self._running or self._waiting)

    def add(self, request: Request) -> None:
        """Let a request wait for its turn."""
        self._waiting.append(request)

    def publish(self, version: int) -> None:
        """Stamp this version on tokens from now on, and share nothing that was computed before."""
        self.version = version
        self._contexts.forget()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Prepare the model for :meth:`step`; nobody else may run it until the block ends."""
        experts = nullcontext() if self._experts is None else self._experts.watching()
        layers = (self._lora.fused(), self._mixture.kept(), self._recurrent.kept(), experts)
        threads = invariant.one_thread() if self.small or self._deterministic else nullcontext()
        with torch.no_grad(), attending(self._model), threads, ExitStack() as stack:
            for layer in layers:
                stack.enter_context(layer)
            yield

    def release(self) -> None:
        """Drop what was computed from the weights, which are about to change; contexts stay."""
        self._lora.forget()

    def step(self) -> list[News]:
        """Run one forward pass, and sample a token for each request that is ready for one."""
        self._drop_cancelled()
        self._admit()
        parts = self._choose()
        if not parts:
            return []
        logits = self._forward(parts)
        ready = []
        for request, count in parts:
            request.context.ids += request.todo[:count]
            del request.todo[:count]
            if not request.todo:
                ready.append(request)
                if request.shown is not None:
                    request.shown.features.clear()
        if not ready:
            return []
        failures = self._sample(logits, [request.stream for request in ready])
        self.sampled += len(ready) - len(failures)
        news = []
        for row, request in enumerate(ready):
            if row in failures:
                self._end(request)
                news.append(News(request, 0, None, failures[row]))
            elif (own := self._follow(request)) is not None:
                news.append(own)
        return news

    def _sample(self, logits: torch.Tensor, streams: list[Stream]) -> dict[int, str]:
        """Sample a token for each stream; return which rows failed, and why.

        What one request's parameters raise is no other request's failure.
        """
        try:
            failed = sample(logits, streams, self.version, deterministic=self._deterministic)
        except Exception as error:
            if len(streams) == 1:
                return {0: f"no token can be sampled: {type(error).__name__}: {error}"}
            failures = {}
            for row, stream in enumerate(streams):
                if why := self._sample(logits[row : row + 1], [stream]):
                    failures[row] = why[0]
            return failures
        return dict.fromkeys(failed, NO_TOKEN)

    def abandon(self) -> None:
        """Drop all requests, and whatever a pass that raised has left of their contexts."""
        self._running.clear()
        self._waiting.clear()
        self._contexts = self._no_contexts()

    def _no_contexts(self) -> Contexts:
        """Return an empty cache's contexts; idle ones with states take memory beside the cache."""
        idle = self._max_requests if self._recurrent else math.inf
        return Contexts(self._max_requests, self._max_seq_len, idle)

    def check(self) -> None:
        """Compare the logits of a short sequence with the model's own, and make the cache.

        Raises:
            ValueError: If they differ, or the model's attention is more than the engine's.
            MemoryError: If there is no memory for the cache.
        """
        vocabulary = self._model.config.get_text_config().vocab_size
        count = min(CHECKED, self._max_seq_len)
        ids = [(7919 * position) % vocabulary for position in range(1, count + 1)]
        pieces = [ids[:3], ids[3:5], *([token] for token in ids[5:])]  # as of a prompt, and sampled
        ends = torch.tensor([len(piece) for piece in pieces if piece]).cumsum(0)
        with torch.no_grad():
            inputs = torch.tensor([ids], device=self.device)
            whole = self._model(input_ids=inputs, use_cache=False).logits[0]
            expected = whole[(ends - 1).to(self.device)].float()
        request = Request(Stream(Sampling(), ids), frozenset(), every_token=False)
        with self.active():
            self._start(request, None, 0)
            logits = []
            for piece in filter(None, pieces):
                request.todo = piece
                logits.append(self._forward([(request, len(piece))])[-1].float())
                request.context.ids += piece
            self._end(request)
        self._contexts.forget()
        spread = (expected - expected.mean(-1, keepdim=True)).norm()
        gap = float((torch.stack(logits) - expected).norm() / spread)
        if not gap <= TOLERANCE.get(self._model.dtype, LOW_PRECISION):
            raise ValueError(
                f"its logits token by token differ by {gap:.1%} from a whole sequence's"
            )

    def _drop_cancelled(self) -> None:
        for request in [request for request in self._running if request.cancelled]:
            self._end(request)

    def _admit(self) -> None:
        """Start requests in the order that they came.

        One whose prompt begins like another's that is just being read waits for that: what they
        share is computed once.
        """
        if not self._waiting:
            return
        reading = [r for r in self._running if r.todo and not r.stream.token_ids]
        later: list[Request] = []
        while self._waiting and len(self._running) < self._most:
            request = self._waiting.popleft()
            if request.cancelled:
                continue
            prompt = request.prompt
            # Not all of it: the last token's logits are needed.
            source, shared = self._contexts.match(prompt[:-1], request.owner)
            alike = (r.prompt for r in reading if r.lora is request.lora)
            if any(self._spares(ids, prompt, shared) for ids in alike):
                later.append(request)
                continue
            if self._sight is not None:
                whole = self._sight.before(prompt, shared)
                shared = 0 if self._recurrent and whole < shared else whole
            self._start(request, source, shared if shared >= WORTH else 0)
            reading.append(request)
        self._waiting.extendleft(reversed(later))

    def _spares(self, read: list[int], prompt: list[int], shared: int) -> bool:
        """Return whether a prompt that is being read will spare more of another one."""
        if self._recurrent:
            return shared < len(prompt) - 1 and read == prompt
        return common(read, prompt, shared + WORTH) > 0

    def _start(self, request: Request, source: Context | None, shared: int) -> None:
        prompt = request.prompt
        origin = source.start if source is not None else 0
        request.context = self._contexts.open(
            prompt, source if shared else None, shared, request.owner
        )
        if shared and request.context is not source:
            self._move(origin, request.context.start, shared)
        if self._recurrent and (request.context is not source or not shared):
            self._recurrent.share(source, request.context, shared)
        request.todo = prompt[shared:]
        self._running.append(request)

    def _choose(self) -> list[tuple[Request, int]]:
        """Return who is in the next pass, with how many tokens."""
        budget = self._max_batch_tokens - len(self._running)
        parts = []
        for request in self._running:
            count = min(len(request.todo), max(budget, 0) + 1)
            if self._recurrent and 1 < count == len(request.todo):
                count -= 1  # a state is kept before the last token of a prompt
            if self._sight is not None:
                count = self._sight.cut(request.todo, count)
            budget -= count - 1
            self._make_room(request.context, len(request.context.ids) + count)
            parts.append((request, count))
        return parts

    def _make_room(self, context: Context, length: int) -> None:
        before = context.start
        self._contexts.grow(context, length)
        if context.start != before:
            self._move(before, context.start, len(context.ids))

    def _move(self, source: int, target: int, count: int) -> None:
        unit = self._contexts.unit
        self._cache.copy(source * unit, target * unit, count)
        if self._experts is not None:
            self._experts.copy(source * unit, target * unit, count)

    def _forward(self, parts: list[tuple[Request, int]]) -> torch.Tensor:
        """Return the logits of the requests whose known tokens are all computed.

        ``parts`` is put into the order of the pass.
        """
        unit, slot = self._contexts.unit, self._contexts.slot
        shared, members = most_shared([request.context for request, count in parts if count == 1])
        if self._deterministic:
            shared -= shared % invariant.TILE
        if shared * (len(members) - 1) < SAVED:
            members = set()

        def order(part: tuple[Request, int]) -> tuple[bool, bool, int, int]:
            context, start = part[0].context, part[0].context.start * unit
            return part[1] > 1, context not in members, start % slot, start

        parts.sort(key=order)
        ids: list[int] = []
        positions: list[int] = []
        queries, last = [], []
        for request, count in parts:
            context, past = request.context, len(request.context.ids)
            begin = shared if context in members else 0
            keys = request.todo[:count]
            ends = self._sight.ends(keys, past) if self._sight is not None else ()
            queries.append(Query(context.start * unit, past, count, begin, ends))
            ids += keys
            positions += range(past, past + count)
            if count == len(request.todo):
                last.append(len(ids) - 1)
        device, ready = self.device, len(last)
        if self._deterministic:
            extra = invariant.missing(len(ids))
            ids += [0] * extra
            positions += [0] * extra
            last += [0] * invariant.missing(ready)
        if self._recurrent:
            self._recurrent.begin([_tokens(request, count) for request, count in parts])
        position_ids, seen = torch.tensor([positions], device=device), {}
        if self._sight is not None:
            seen = self._sight.arguments((r.todo[:count], r.shown) for r, count in parts)
            ids = self._sight.ids(ids)
            spans = ((len(r.context.ids), count, r.shown) for r, count in parts)
            position_ids = positions_of(position_ids, spans)
        owners = [(r.lora, count, count == len(r.todo)) for r, count in parts]
        kept = torch.tensor(last, dtype=torch.long, device=device)  # none where a prompt is cut
        with self._mixture.using(parts_of(owners, device)):
            output = self._model(
                input_ids=torch.tensor([ids], device=device),
                position_ids=position_ids,
                attention_mask=torch.ones(1, len(ids), dtype=torch.long, device=device),
                use_cache=False,
                logits_to_keep=kept if ready < len(ids) else 0,
                vf_pass=Pass(self._cache, queries, device, deterministic=self._deterministic),
                **seen,
            )
        if self._experts is not None:
            self._experts.write([position for query in queries for position in query.positions])
        logits: torch.Tensor = output.logits[0, :ready]
        return logits

    def _follow(self, request: Request) -> News | None:
        """End a request after its new token, or feed the token back; return what is news."""
        stream = request.stream
        token, count = stream.token_ids[-1], len(stream.token_ids)
        reason: Reason | None = None
        if token in request.stops:
            reason = "stop"
        elif count == stream.sampling.max_tokens:
            reason = "length"
        if reason is not None:
            self._tell_experts(request)
            self._end(request)
        else:
            request.todo.append(token)
        return News(request, count, reason) if reason or request.every_token else None

    def _tell_experts(self, request: Request) -> None:
        first = request.stream.sampling.experts_from
        if self._experts is not None and first is not None:
            start = request.context.start * self._contexts.unit
            end = len(request.context.ids)
            request.stream.experts = self._experts.read(start + first, start + end)

    def _end(self, request: Request) -> None:
        self._running.remove(request)
        if self._recurrent:
            self._recurrent.rest(request.context)
        self._contexts.close(request.context)


def _tokens(request: Request, count: int) -> Tokens:
    """Return the next tokens of a request, for recurrent layers."""
    context = request.context
    ends_prompt = bool(context.ids) and len(request.todo) == 1 and not request.stream.token_ids
    return Tokens(context, request.lora, count, keep=ends_prompt)
