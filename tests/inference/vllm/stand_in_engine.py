"""A VllmEngine whose server is the stand-in, and what can be seen of it from outside."""

from __future__ import annotations

import asyncio
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vf.inference.completions import Completion, TokenClient
from vf.inference.model import Sampling
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
    rung: str
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


async def ask(sampler: TokenClient, count: int = 2) -> Completion:
    """Sample a completion of so many tokens."""
    return await sampler.complete([1, 2, 3], Sampling(max_tokens=count), [0])


def alive(pid: int) -> bool:
    """Return whether a process runs; one that nobody has buried yet does not."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return state.stdout.strip()[:1] not in ("", "Z")
