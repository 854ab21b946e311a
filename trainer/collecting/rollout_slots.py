"""Which rollouts may run now: training in the order of the steps, evaluation within its share."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

Rank = tuple[int, ...]

AT_ONCE = 16  # slots given in one pass of the event loop, so that its timers are not late


class RolloutSlots:
    """A number of slots, which go first to the earliest step.

    Evaluation rollouts hold at most their share while training rollouts wait, and may use whatever
    these leave free. A slot that is held is never taken away.

    Args:
        total: The number of slots.
        eval_share: The share, over 0 and at most 1.
    """

    def __init__(self, total: int, eval_share: float) -> None:
        self._free = total
        self._eval_most = max(1, math.floor(total * eval_share))
        self._eval_held = 0
        self._given = 0  # in this pass of the loop
        self._order = itertools.count()
        self._training: list[tuple[Rank, int, asyncio.Future[None]]] = []
        self._evaluating: deque[asyncio.Future[None]] = deque()

    @asynccontextmanager
    async def hold(self, rank: Rank | None) -> AsyncIterator[None]:
        """Hold a slot while the block runs.

        Args:
            rank: The rank of a training rollout; the smallest gets the next slot. None for
                evaluation.
        """
        turn = asyncio.get_running_loop().create_future()
        if rank is None:
            self._evaluating.append(turn)
        else:
            heapq.heappush(self._training, (rank, next(self._order), turn))
        self._grant()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # granted together with the cancellation
                self._give_back(evaluating=rank is None)
            raise
        try:
            yield
        finally:
            self._give_back(evaluating=rank is None)

    def _give_back(self, *, evaluating: bool) -> None:
        self._free += 1
        self._eval_held -= evaluating
        self._grant()

    def _grant(self) -> None:
        while self._free and self._given < AT_ONCE:
            self._forget_cancelled()
            within = self._eval_held < self._eval_most
            if self._evaluating and (within or not self._training):
                turn = self._evaluating.popleft()
                self._eval_held += 1
            elif self._training:
                _, _, turn = heapq.heappop(self._training)
            else:
                return
            self._free -= 1
            if not self._given:
                asyncio.get_running_loop().call_soon(self._next_pass)
            self._given += 1
            turn.set_result(None)

    def _next_pass(self) -> None:
        self._given = 0
        self._grant()

    def _forget_cancelled(self) -> None:
        while self._evaluating and self._evaluating[0].done():
            self._evaluating.popleft()
        while self._training and self._training[0][2].done():
            heapq.heappop(self._training)
