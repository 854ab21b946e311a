"""Sandboxes that only count how many there are."""

from __future__ import annotations

import asyncio

from vf.sandbox.scripted_sandbox import ScriptedSandbox


class Counted(ScriptedSandbox):
    """A sandbox that only counts how many there are."""

    def __init__(self, factory: Factory) -> None:
        super().__init__()
        self.factory = factory
        self.number = factory.made
        self.closings = 0

    async def close(self) -> None:
        self.closings += 1
        await asyncio.sleep(self.factory.close_seconds)
        if self.factory.close_error:
            raise self.factory.close_error
        self.factory.there -= 1


class Factory:
    """Makes them, as slowly and as unreliably as a test asks."""

    def __init__(self, seconds: float = 0.0, errors: list[Exception] | None = None) -> None:
        self.seconds = seconds
        self.errors = errors or []
        self.close_seconds = 0.0
        self.close_error: Exception | None = None
        self.made = self.there = self.at_once = self.most_at_once = 0
        self.tried = 0

    async def __call__(self) -> Counted:
        self.tried += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(self.seconds)
            if self.errors:
                raise self.errors.pop(0)
        finally:
            self.at_once -= 1
        self.made += 1
        self.there += 1
        return Counted(self)
