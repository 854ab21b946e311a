"""A VllmEngine whose server is the stand-in, and what can be seen of it from outside."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sys
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.waiting import wait_until
from vf.inference.completions import Completion
from vf.inference.model import Sampling
from vf.inference.token_client import TokenClient
from vf.inference.vllm.replicated_engine import ReplicatedEngine
from vf.inference.vllm.vllm_engine import VllmEngine

# Without the site packages it starts in a moment.
COMMAND = [sys.executable, "-S", str(Path(__file__).with_name("stand_in.py"))]
EXECUTABLE = shlex.join(COMMAND)
MODEL = "org/model"
ENCODED = ("ab", [97, 98])  # as the stand-in tokenizes


@dataclass
class NumberedWeights:
    """Weights that are one number; see the stand-in."""

    number: int = 0
    rank: int = 8
    untied: list[bool] = field(default_factory=list)

    def save(self, folder: Path, *, untied: bool = False) -> None:
        self.untied.append(untied)
        folder.mkdir(parents=True)
        (folder / "adapter_config.json").write_text(json.dumps({"r": self.rank}))
        (folder / "number.txt").write_text(str(self.number))

    def named_tensors(self) -> Iterator[tuple[str, Any]]:
        raise AssertionError("only NCCL asks for tensors, and vLLM's side is missing here")


class Journal:
    """What the stand-in has written down."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def entries(self) -> list[dict[str, Any]]:
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return [json.loads(line) for line in lines]

    @property
    def starts(self) -> list[dict[str, Any]]:
        return [entry for entry in self.entries() if "start" in entry]

    @property
    def begun(self) -> int:
        """How many completions have at least one token."""
        return sum("sampling" in entry for entry in self.entries())

    @property
    def pids(self) -> list[int]:
        """The server and its grandchild, in its latest life."""
        return list(self.starts[-1]["pids"])

    def calls(self, *paths: str) -> list[tuple[str, dict[str, Any]]]:
        """Return the requests to these paths (or to all): path, and body with query."""
        return [
            (entry["path"], (entry["body"] or {}) | entry["query"])
            for entry in self.entries()
            if "path" in entry and (not paths or entry["path"] in paths)
        ]

    def flag(self, name: str) -> str | None:
        """Return the value of a flag of the latest start, or None if it was not given."""
        words: list[str] = self.starts[-1]["start"]
        return words[words.index(name) + 1] if name in words else None


@dataclass
class Standing:
    """An engine on the stand-in."""

    engine: VllmEngine
    weights: NumberedWeights
    journal: Journal
    folder: Path
    method: str
    noted: list[str]
    said: list[str] = field(default_factory=list)

    def start(self) -> Standing:
        self.engine.start(self.said.append)
        return self

    def publish(self, number: int, version: int) -> None:
        self.weights.number = number
        self.engine.publish(version)

    def sample(self, count: int = 2, sampler: TokenClient | None = None) -> Completion:
        """Sample one completion, and close the sampler."""

        async def run() -> Completion:
            client = sampler or self.engine.sampler(30.0)
            try:
                return await ask(client, count)
            finally:
                await client.close()

        return asyncio.run(run())


@dataclass
class StandingTogether:
    """An engine on several stand-ins."""

    engine: ReplicatedEngine
    weights: NumberedWeights
    folder: Path
    noted: list[str]
    said: list[str] = field(default_factory=list)

    @property
    def journals(self) -> list[Journal]:
        """What each server writes down."""
        ports = [member.base_url.split(":")[2].split("/")[0] for member in self.engine.members]
        return [Journal(self.folder / f"journal-{port}.jsonl") for port in ports]

    def start(self) -> StandingTogether:
        self.engine.start(self.said.append)
        return self

    def publish(self, number: int, version: int) -> None:
        self.weights.number = number
        self.engine.publish(version)

    def kill(self, number: int) -> None:
        """Kill a server, and wait until no request is sent to it."""
        os.kill(self.journals[number].pids[0], signal.SIGKILL)
        wait_until(lambda: not self.engine.members[number].serving.is_up)

    def spoil(self, number: int) -> None:
        """Let a server refuse all requests, in its first life; see ``refusing`` of the stand-in."""
        (
            self.folder / f"refusing-{self.engine.members[number].base_url.split(':')[2][:-3]}"
        ).touch()

    def wait_for(self, number: int) -> None:
        """Wait, as the trainer does, until a server is taken back."""

        def is_back() -> bool:
            self.engine.check()
            return self.engine.members[number].serving.is_up

        wait_until(is_back)

    def sample_of(self, number: int) -> Completion:
        """Sample one completion from one of the servers."""
        slot = self.engine.members[number].slot
        client = TokenClient(self.engine.leases.only(slot), max_retries=0)
        return asyncio.run(closing(client, ask(client)))


async def closing(client: TokenClient, work: Awaitable[Completion]) -> Completion:
    """Close a client after its use."""
    try:
        return await work
    finally:
        await client.close()


async def ask(sampler: TokenClient, count: int = 2) -> Completion:
    """Sample a completion of so many tokens."""
    return await sampler.complete([1, 2, 3], Sampling(max_tokens=count), [0])
